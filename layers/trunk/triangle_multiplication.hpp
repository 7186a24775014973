// SPDX-License-Identifier: MIT
// Triangle multiplication, outgoing and incoming.
//   Outgoing: o[n,m] = sum_k a[n,k] b[m,k]      Incoming: o[n,m] = sum_k a[k,n] b[k,m]
//   (formulas: layers/math/triangle_multiplication.hpp)
//   x [B, N, N, dim] pair (S0,S1,S2); mask [B, N, N] pair, without gradient; y as x. N divisible by
//   cp0 and cp1.
//   Parameters, in order: norm_in.weight, norm_in.bias [dim]; p_in.weight, g_in.weight [2 dim,
//   dim]; norm_out.weight, norm_out.bias [dim]; p_out.weight, g_out.weight [dim, dim].
//
//   Messages, with T the bytes of one tile of dim channels in x's dtype (in backward, of the
//   cotangent, cast to x's dtype), on an R0 x R1 grid:
//     forward   2 relayouts (skews), R1-1 tiles along cp1, R0-1 tiles along cp0
//     backward  the same twice
//   On a P x P grid: 2P T forward and 4P T backward on the busiest rank.
//   The parameter gradients are summands on dp, cp0 and cp1.
//   Saved (pair class): x, a, b (dim channels each), o (dim, in acc), two norms' statistics (4, in
//   acc), mask (1). Nothing is larger than a tile, forward or backward.
#pragma once

#include "tessera/layers/substrate/layer_norm.hpp"
#include "tessera/layers/substrate/weight.hpp"

namespace tessera {

enum class TriangleDirection { outgoing, incoming };

class TriangleMultiplication : public Module {
 public:
  TriangleMultiplication(const Build& build, std::int64_t dim, TriangleDirection direction);
  Var forward(const Var& x, const Var& mask) const;

 private:
  TriangleDirection direction_;
  LayerNorm norm_in_;
  Weight p_in_, g_in_;
  LayerNorm norm_out_;
  Weight p_out_, g_out_;
};

}  // namespace tessera

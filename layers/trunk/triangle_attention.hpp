// SPDX-License-Identifier: MIT
// Triangle attention around the starting node and around the ending node.
//   Starting, within row i:     a[j,k] = (q[i,j].k[i,k] / sqrt(c) + inf (mask[i,k] - 1)) + t[j,k]
//   Ending, within column j:    a[i,k] = (q[i,j].k[k,j] / sqrt(c) + inf (mask[k,j] - 1)) + t[k,i]
//   o = softmax over k of a, times v     (formulas: layers/math/triangle_attention.hpp)
//   x [B, N, N, C] pair (S0,S1,S2); mask [B, N, N] pair, without gradient; y as x. N divisible by
//   cp0 and cp1.
//   Parameters, in order: layer_norm.weight, layer_norm.bias [C]; linear.weight [H, C];
//   mha.linear_q.weight, mha.linear_k.weight, mha.linear_v.weight [H*c, C]; mha.linear_o.weight
//   [C, H*c]; mha.linear_g.weight [H*c, C].
//   `infinity` is finite: a row without any key attends to all keys, like the serial layer.
//
//   Every rank keeps its queries. Keys, values and mask travel along cp1 and the biases t along cp0
//   (starting node), or the other way round (ending node). Heads are taken in K groups, one after
//   the other, so that what travels stays small beside a tile: K = ring_groups() of the tile of x.
//   Messages, with T(c) the bytes of a tile of c channels in x's dtype, on a P x P grid:
//     forward    skew of xh, mask, t: T(C) + T(1) + T(H); ring (P-1) (T(2 H c) + K T(1) + T(H))
//     backward   the same again, then the gradients of keys and t with them: P (T(2 H c) + T(H)) in
//                at least f32, and home: T(C) + T(H)
//   The parameter gradients are summands on dp, cp0 and cp1.
//   Saved (pair class): x, o (H*c), mask (1), and in acc the norm's statistics (2), maximum and
//   log_sum (H each). xh, q, k, v, t and the gate are formed again in backward.
#pragma once

#include "tessera/layers/substrate/layer_norm.hpp"
#include "tessera/layers/substrate/weight.hpp"

namespace tessera {

enum class TriangleNode { starting, ending };

class TriangleAttention : public Module {
 public:
  TriangleAttention(const Build& build, std::int64_t c_in, std::int64_t c_hidden,
                    std::int64_t no_heads, TriangleNode node, double infinity = 1e9);
  Var forward(const Var& x, const Var& mask) const;

 private:
  struct Projections : Module {
    Projections(const Build& build, std::int64_t c_in, std::int64_t width);
    Weight q, k, v, o, g;
  };
  TriangleNode node_;
  double infinity_;
  LayerNorm layer_norm_;
  Weight linear_;
  Projections mha_;
};

}  // namespace tessera

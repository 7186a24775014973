// SPDX-License-Identifier: MIT
// Outer product mean: from the rows of an MSA to pairs of tokens.
//   y[i,j] = (sum_s a[s,i] (x) b[s,j]) Wo^T / max(1, rows that have both i and j) + bias
//   (formulas: layers/math/outer_product_mean.hpp)
//   m [B, S, N, c_in], mask [B, S, N]: msa (S0,S1,S2); y [B, N, N, c_out]: pair (S0,S1,S2).
//   S and N divisible by cp0 and cp1 (UnevenError). The mask may be any matrix of numbers and
//   has no gradient.
//   Parameters, in order: norm.weight, norm.bias [c_in]; proj_a.weight, proj_b.weight [c_hidden,
//   c_in]; proj_o.weight [c_out, c_hidden^2], column c*c_hidden + d for channel c of a and d of b;
//   proj_o.bias [c_out].
//
//   a and b move (swap of a fused into its skew) while the pairs stay. The c_hidden^2 products of a
//   pair, the largest intermediate of the trunk, are never whole: each panel of rows contributes
//   its projection, because that is linear. The price: Wo is applied once per panel instead of
//   once, (L-1) times 2 c_hidden^2 c_out operations per pair more, L = lcm(R0,R1); in backward
//   twice that.
//
//   Messages, with T(c) the bytes of one msa tile of c channels, h = c_hidden, on R0 x R1:
//     forward   2 skews, R1-1 windows along cp1, R0-1 along cp0, each T(h+1): h channels, the mask
//     backward  the same without the mask, T(h); beside it the sums of the gradients of a and b, R1
//               and R0 windows, and 2 moves home, each T(h) in acc
//   On a P x P grid: 2P T(h+1) forward and (4P+2) T(h) backward. Gradients of all parameters are
//   summands on dp, cp0 and cp1.
//   Saved: m and the mask (msa), the counts (pair, 1 channel in acc). a, b and the products are
//   formed again. Nothing is larger than a tile, forward or backward.
#pragma once

#include "tessera/layers/substrate/layer_norm.hpp"
#include "tessera/layers/substrate/linear.hpp"
#include "tessera/layers/substrate/weight.hpp"

namespace tessera {

class OuterProductMean : public Module {
 public:
  OuterProductMean(const Build& build, std::int64_t c_in, std::int64_t c_hidden,
                   std::int64_t c_out);
  Var forward(const Var& m, const Var& mask) const;

 private:
  LayerNorm norm_;
  Weight proj_a_, proj_b_;
  Linear proj_o_;
};

}  // namespace tessera

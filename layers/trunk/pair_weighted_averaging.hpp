// SPDX-License-Identifier: MIT
// Pair-weighted averaging of an MSA: every row takes the same averages over tokens, whose weights
// come from the pair tensor.
//   w[q,k,h] = softmax over k of (LN(z) Wz^T + inf (mask - 1))
//   o[s,q,h] = sum_k w[q,k,h] v[s,k,h]     (formulas: layers/math/pair_weighted_averaging.hpp)
//   m [B, S, N, c_m] msa (S0,S1,S2); z [B, N, N, c_z], mask [B, N, N] pair; y as m. S divisible by
//   cp0, N by cp0 and cp1. The keys are the second token of z. The caller adds the residual.
//   Parameters, in order: norm_m.weight, norm_m.bias [c_m]; norm_z.weight, norm_z.bias [c_z];
//   proj_m.weight, proj_g.weight [H c_h, c_m]; proj_z.weight [H, c_z]; proj_o.weight [c_m, H c_h].
//
//   Messages. The logits stay where they are and do not depend on the rows of the MSA: they are
//   normalised first, then v and w travel. Tm, Tz: bytes of a tile of H c_h channels of m's form
//   and of H channels of z's form, in m's dtype; Tz' the same in acc; on an R0 x R1 grid:
//     forward   2 all_reduces over cp1 of H numbers per own query (maxima, sums); 2 relayouts
//               (skews of v and w), R1-1 Tm along cp1, R0-1 Tz along cp0
//     backward  2 relayouts (gradient of o, w), R1-1 Tm along cp1, R0-1 Tz and R0 Tz' along cp0 (w
//               and the sums of its gradient), 1 relayout home of Tz', 1 all_reduce over cp1 as
//               above
//   The sums that travel are those of the gradient of w. The softmax's own sum over keys is taken
//   at home, from the complete gradient: it needs one all_reduce, and counts every row of the MSA
//   once. Tiles that are large move in groups of heads, K times with a K-th of the bytes: groups
//   with no more channels than m.
//   The parameter gradients are summands on dp, cp0 and cp1.
//   Saved: m, z, the statistics of both (2 each, in acc), w (H channels of z's form) and o before
//   its gate (H c_h channels of m's form), which only the ring could bring back; v and the gate are
//   formed again. Beside o nothing has more channels than m or z, but tiles of v under 2 MiB.
//   Errors: TypeError if m and z have unlike dtypes, GradientError if the mask wants a gradient.
#pragma once

#include "tessera/layers/substrate/layer_norm.hpp"
#include "tessera/layers/substrate/weight.hpp"

namespace tessera {

class PairWeightedAveraging : public Module {
 public:
  // c_h: width of a head. inf: what is subtracted from the logits of masked keys; finite, so that a
  // query without keys averages over all of them.
  PairWeightedAveraging(const Build& build, std::int64_t c_m, std::int64_t c_z, std::int64_t c_h,
                        std::int64_t num_heads, double inf = 1e6);
  Var forward(const Var& m, const Var& z, const Var& mask) const;

 private:
  double inf_;
  LayerNorm norm_m_, norm_z_;
  Weight proj_m_, proj_g_, proj_z_, proj_o_;
};

}  // namespace tessera

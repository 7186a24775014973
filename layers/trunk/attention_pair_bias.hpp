// SPDX-License-Identifier: MIT
// Attention of single tensors with a bias from pairs (projections:
// layers/math/attention_pair_bias.hpp, bias t: layers/trunk/pair_bias.hpp):
//   a[h,i,j] = (q_i.k_j / sqrt(C/H) + t[h,i,j]) + inf (mask_j - 1);  o_i = sum_j softmax_j(a) v_j
// q and the gate come from s, k and v from k_in, t from z.
//
// forward(), global form. Placements: s, k_in, mask, y single (S0,S1,R); z, pair_mask pair.
//   s, k_in, y [B*M, N, C]; mask [B*M, N] of keys; M samples of a problem follow each other and
//   share z [B, N, N, c_z] and pair_mask [B, N, N], which multiplies the mask. N divisible by cp0
//   and cp1.
//   Rank (i, j) forms the tile of logits I_i x J_j; tiles of a row are merged by their softmax
//   sums. t never moves.
//   Messages, with T(c) the bytes of c channels of the own single block:
//     forward   k, v, mask by relayout (layers/schedule/key_panels.hpp), on a P x P grid one
//               exchange of T(2C+1); all_reduces on cp1 of T(H) and T(C+H), in acc
//     backward  dk, dv by relayout, T(2C); all_reduce on cp1 of T(3C), in acc; if R1 < R0 also the
//               relayout of forward again
//   Saved: s, k_in, o (C each), maximum and log sum (H each, in acc), k, v, mask of J_j (2C+1; if
//   R1 < R0 the own mask instead), t (H), pair_mask; what layers/trunk/pair_bias.hpp saves. q and
//   the gate are formed again.
//
// forward_windows(). Windows of W queries and U keys, all (S0,S1,R), no messages.
//   s, y [B*M, K, W, C]; k_in [B*M, K, U, C]; mask [B, K, U]; z [B, K, W, U, c_z].
//   Saved: s, k_in, mask, o, maximum, log sum, t; k and v too are formed again.
//
// Gradients of the weights that act on single tensors are summands on dp and cp0, those of proj_z
// on the axes of z. The masks have no gradient.
#pragma once

#include <functional>
#include <optional>

#include "tessera/layers/trunk/pair_bias.hpp"

namespace tessera {

// v1 may normalise s and makes the keys itself; v2 takes them as k_in.
enum class PairBiasVersion { v1, v2 };

struct AttentionPairBiasOptions {
  std::int64_t c_s = 0;
  std::int64_t num_heads = 0;  // divides c_s
  std::int64_t c_z = 0;
  PairBiasVersion version = PairBiasVersion::v2;
  bool initial_norm = true;       // v1
  bool compute_pair_bias = true;  // v2; false: z is t itself, [.., num_heads]
  double inf = 1e6;
};

// Parameters, in order: norm_s.weight, norm_s.bias (v1 with initial_norm); proj_q.weight,
// proj_q.bias; proj_k.weight, proj_v.weight, proj_g.weight; proj_z.0.weight, proj_z.0.bias,
// proj_z.1.weight (unless z is t); proj_o.weight.
class AttentionPairBias : public Module {
 public:
  AttentionPairBias(const Build& build, const AttentionPairBiasOptions& options);

  struct Inputs {
    Var s, z, mask;
    Var k_in = {};       // v2
    Var pair_mask = {};  // optional, global form
    // v1, optional: leads from positions to keys, of the normalised s and of mask[.., 1].
    std::function<Var(const Var&)> to_keys = {};
  };
  // TypeError: operands of the other version. ShapeError, also if the batch of s is no multiple of
  // that of z.
  Var forward(const Inputs& inputs) const;
  Var forward_windows(const Inputs& inputs) const;

 private:
  Var run(const Inputs& inputs, bool windows) const;

  AttentionPairBiasOptions options_;
  std::optional<LayerNorm> norm_s_;
  Weight proj_q_, proj_k_, proj_v_, proj_g_;
  std::optional<PairBias> proj_z_;
  Weight proj_o_;
};

}  // namespace tessera

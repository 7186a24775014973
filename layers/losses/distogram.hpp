// SPDX-License-Identifier: MIT
// Distogram loss: cross-entropy of predicted distance histograms with those of true conformers,
// over pairs of different tokens. The pattern for losses: one Function; sums of numerators and
// counts travel, never a pair tensor; backward sends nothing.
//   logits [B, T, T, D, K] (S0,S1,S2), floating (TypeError), D predicted distograms of K bins.
//   target [B, T, T, C, K] (S0,S1,S2), weights of bins for C conformers; or the bins themselves,
//          [B, T, T, C] i64 or i32 (TypeError). No gradient (GradientError).
//   mask   [B, T] (S0,S1,R), which tokens count. No gradient (GradientError).
//   With w_ij = mask_i mask_j (0 for i = j), den_b = 1e-5 + sum_ij w_ij, and e_ij the
//   cross-entropy: aggregate: conformers are added up and normalised to P (total at least 1), D = 1
//   (ShapeError);
//     batch_b = sum_ij w_ij e(P)_ij / den_b.
//   per conformer: batch_b = mean over c of min over d of sum_ij w_ij e^{cd}_ij / den_b; of equal
//     minima the first counts.
//   global [] (R,R,R): mean of batch [B] (S0,R,R). Both in at least f32.
//   Messages: forward, one exchange of mask blocks, one all_reduce of C*D + 1 sums per sample over
//   cp0+cp1 in f64, one of a scalar over dp; backward, none.
//   Saved: logits, target, mask (own block and that of the columns), C*D weights per sample.
#pragma once

#include "tessera/autodiff/tape.hpp"

namespace tessera {

struct DistogramLoss {
  Var global;
  Var batch;
};
DistogramLoss distogram_loss(const Var& logits, const Var& target, const Var& mask, bool aggregate);

}  // namespace tessera

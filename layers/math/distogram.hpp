// SPDX-License-Identifier: MIT
// Block functions of the distogram loss: sums over a tile of token pairs, and the gradient of the
// logits. Serial and distributed layers use the same tile functions; a serial tile is the whole.
#pragma once

#include "tessera/mesh/shard.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera::math {

// Pairs (i, j) of global rows and columns, i in `rows`, j in `columns`.
struct DistogramTile {
  Tensor logits;       // [B, n, m, D, K]
  Tensor target;       // [B, n, m, C, K] weights of bins, or [B, n, m, C] i64 bins
  Tensor row_mask;     // [B, n]
  Tensor column_mask;  // [B, m]
  Interval rows;
  Interval columns;
  bool aggregate;  // the conformers' targets are added up and normalised first: C counts as 1
};

// With w_ij = row_mask_i * column_mask_j, zero for i = j, and the cross-entropy of each target with
// each predicted distogram, e_ij = -sum_k target_k log_softmax(logits)_k:
// f64 [B, C*D + 1], sum_ij w_ij e_ij for each (c, d), then sum_ij w_ij.
Tensor distogram_sums(const DistogramTile& tile);

// The gradient of sum_cd weights[b, c, d] sum_ij w_ij e_ij, in the dtype of the logits.
// weights: f64 [B, C, D].
Tensor distogram_gradient(const DistogramTile& tile, const Tensor& weights);

}  // namespace tessera::math

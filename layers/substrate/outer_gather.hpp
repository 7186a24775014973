// SPDX-License-Identifier: MIT
// Windows of a pair tensor by two lists of global indices. Each window needs the box between its
// smallest and largest rows and columns, whose area is at most that of the window if the indices
// run without gaps. Any CP grid, square or not.
#pragma once

#include <cstdint>

#include "tessera/autodiff/tape.hpp"
#include "tessera/layers/schedule/interval.hpp"
#include "tessera/mesh/relayout.hpp"

namespace tessera {

// Integers only, made once and used by any number of calls.
struct OuterGatherPlan {
  DeviceMesh mesh;
  Placements placements;   // of the indices
  Shape rows_of, cols_of;  // their global shapes [*batch, K, W] and [*batch, K, H]
  int dim = 0;             // K
  std::int64_t rows = 0;   // of the pair tensor
  std::int64_t cols = 0;
  RelayoutPlan boxes;       // from tiles, one for each own sample, rows of sample b from b*rows on,
                            // to boxes, one for each own window
  IntervalPlan panel;       // the rows to which this rank adds in backward, for its own columns
  Tensor row_ids, col_ids;  // of this rank [windows, W], [windows, H]; below zero for none
};

// Collective. idx_n [*batch, K, W], idx_m [*batch, K, H], i64 or i32, on a mesh (dp, cp0, cp1),
// placed (S of a batch dim or R, S(dim), R); masks: bool, as their indices; -1 counts as masked.
// RangeError on all ranks: an index that counts is not one of `rows`, `cols`. Message: an
// all-gather over cp0 of four integers for each window.
OuterGatherPlan outer_gather_plan(const Var& idx_n, const Var& idx_m, int dim, std::int64_t rows,
                                  std::int64_t cols, const Var& mask_n = {},
                                  const Var& mask_m = {});

// z [*batch, rows, cols, *features], (as the indices, S(dim), S(dim+1)) -> [*batch, K, W, H,
// *features], placed like the indices: y[b,k,w,h] = z[b, idx_n[b,k,w], idx_m[b,k,h]], zero unless
// both count. Row-major.
// Messages: forward, one relayout of the parts of boxes; backward, sums of rows over cp0: each rank
// adds up the entries of its own columns, so that no replica along cp1 counts twice. Saved: the
// ids.
Var outer_gather(const Var& z, const OuterGatherPlan& plan);
Var outer_gather(const Var& z, const Var& idx_n, const Var& idx_m, int dim, const Var& mask_n = {},
                 const Var& mask_m = {});

}  // namespace tessera

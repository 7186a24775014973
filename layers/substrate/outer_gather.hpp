// SPDX-License-Identifier: MIT
// Windows of a pair tensor by two lists of global indices. Each window needs the box between its
// smallest and largest rows and columns, whose area is at most that of the window if the indices
// run without gaps. Any CP grid, square or not. The windows lie on the rows of the grid, the same
// on all its columns, or all ranks of the grid share them, as shards of the flat mesh.
#pragma once

#include <cstdint>

#include "tessera/autodiff/tape.hpp"
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
  Interval columns;         // for which this rank adds up the entries of its windows in backward
  RelayoutPlan sums;        // as boxes, each without other columns than these
  Tensor row_ids, col_ids;  // of this rank [windows, W], [windows, H]; below zero for none
};

// Collective. idx_n [*batch, K, W], idx_m [*batch, K, H], i64 or i32, on a mesh (dp, cp0, cp1),
// placed (S of a batch dim or R, S(dim), R), or on its flat view, (S of a batch dim or R, S(dim));
// masks: bool, as their indices; -1 counts as masked. RangeError on all ranks: an index that counts
// is not one of `rows`, `cols`. Message: an all-gather of four integers for each window over the
// axis that shards them.
OuterGatherPlan outer_gather_plan(const Var& idx_n, const Var& idx_m, int dim, std::int64_t rows,
                                  std::int64_t cols, const Var& mask_n = {},
                                  const Var& mask_m = {});

// z [*batch, rows, cols, *features], (as the indices, S(dim), S(dim+1)) on the mesh (dp, cp0, cp1)
// of which the indices' mesh is a view (MeshError) -> [*batch, K, W, H, *features], on the mesh and
// placed like the indices: y[b,k,w,h] = z[b, idx_n[b,k,w], idx_m[b,k,h]], zero unless both count.
// Row-major.
// Messages: forward, one relayout of the parts of boxes; backward, the same in reverse, of sums.
// Where the windows are the same on all columns of the grid, each rank adds up the entries of its
// own columns, so that none counts twice, and sends over cp0 only. Windows are summed one by one,
// then in their order, so that gradients have the same bits on every mesh. Saved: the ids.
Var outer_gather(const Var& z, const OuterGatherPlan& plan);
Var outer_gather(const Var& z, const Var& idx_n, const Var& idx_m, int dim, const Var& mask_n = {},
                 const Var& mask_m = {});

}  // namespace tessera

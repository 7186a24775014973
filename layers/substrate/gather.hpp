// SPDX-License-Identifier: MIT
// Rows of a sharded dim by global index, and sums into them. Each rank reads or writes the interval
// from its smallest to its largest index, so that indices should be nearly sorted along the shards.
// Indices that a mask excludes, or that are -1, count nowhere.
#pragma once

#include <cstdint>

#include "tessera/autodiff/tape.hpp"
#include "tessera/layers/schedule/interval.hpp"
#include "tessera/mesh/placement.hpp"

namespace tessera {

// What gathers and scatters know of their indices: integers only, made once and used by any number
// of calls.
struct GatherPlan {
  DeviceMesh mesh;
  Placements placements;  // of the indices, and of everything that goes with them
  Shape indices;          // their global shape [*batch, *positions]
  int dim = 0;            // the first of the positions; the only one of them that is sharded
  std::int64_t size = 0;  // of the dim that they point into
  IntervalPlan interval;
  Tensor places;  // [batch, positions] of this rank: places in the needed interval, -1 for none
};

// Collective. idx [*batch, *positions] i64 or i32, S(dim) on one mesh axis that divides `size`,
// batch dims S or R, later dims whole (PlacementError); values in [0, size) (RangeError on all
// ranks). mask: bool, as idx (TypeError). Message: an all-gather of two integers of each rank.
GatherPlan gather_plan(const Var& idx, int dim, std::int64_t size, const Var& mask = {});
// The same for indices that stay in the own shard of each rank (RangeError on all ranks if one does
// not): no messages, here and in all that the plan is used for.
GatherPlan aligned_plan(const Var& idx, int dim, std::int64_t size, const Var& mask = {});

// x [*batch, size, *features] -> [*batch, *positions, *features]: y[b,k] = x[b, idx[b,k]], zero
// where the index does not count. x is placed as the plan's indices. The last batch dim may be a
// multiple M of theirs: row b*M+m goes with the indices b. Row-major. Messages: forward, rows of x;
// backward, sums of rows in at least f32. Saved: the places.
Var gather(const Var& x, const GatherPlan& plan);
Var gather(const Var& x, const Var& idx, int dim, const Var& mask = {});

// src [*batch, *positions, *features] -> [*batch, size, *features]: the sum or mean (avg) of the
// rows with the same index, zero where there is none. Placements and M as in gather(); formed in at
// least f32. Row-major. Messages: forward, sums of rows and, for avg, counts; backward, rows of the
// gradient. Saved: the places; for avg the counts of the own rows. UnsupportedError: other
// reductions.
Var scatter_reduce(const Var& src, const GatherPlan& plan, ReduceOp reduction);
// size = size_per_rank times the ranks of the axis that shards dim.
Var scatter_reduce(const Var& src, const Var& idx, int dim, std::int64_t size_per_rank,
                   ReduceOp reduction, const Var& mask = {});

}  // namespace tessera

// SPDX-License-Identifier: MIT
// Reductions over dims. Negative dims count from the end (RangeError); without `keepdim` the dims
// go and later shards move down (S(d) becomes S(d-1)). Sums are formed in f64 on a rank and in at
// least f32 between ranks; those of integers and booleans are i64. Results keep the dtype of x and
// its order of dims in memory. Partial operands are refused (PartialError).
//
// sharded_*: every dim is sharded. shardwise_*: the dim is whole (PlacementError both), no message.
#pragma once

#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// Sum over `dims`, at least one and none twice (RangeError). The mesh axes that shard them become
// R. Messages: one all_reduce per such axis, in mesh order; backward none. Saved: nothing.
Var sharded_sum(const Var& x, const std::vector<int>& dims, bool keepdim = false);

// Saved: nothing. The mean is of floating x (TypeError).
Var shardwise_sum(const Var& x, int dim, bool keepdim = false);
Var shardwise_mean(const Var& x, int dim, bool keepdim = false);
// A NaN is both. The gradient goes to one element, that of the lowest index among equals.
// Saved: the indices, i64.
Var shardwise_max(const Var& x, int dim, bool keepdim = false);
Var shardwise_min(const Var& x, int dim, bool keepdim = false);
// i64, the lowest index among equals. No gradient.
Var shardwise_argmax(const Var& x, int dim, bool keepdim = false);
// sqrt(sum of squares); its gradient is 0 where it is 0. Saved: x and the result.
Var shardwise_norm(const Var& x, int dim, bool keepdim = false);

// How many of the edges are strictly below each element: i64. Any placements. No gradient.
Var shardwise_distogram(const Var& x, const std::vector<double>& edges);

// x + c offset, c the own coordinate on the axis that shards `dim` (PlacementError if none does):
// turns indices within blocks into global ones. The offset is a number, or a tensor equal on all
// ranks with as many dims as x, each of size 1 or of the local size (ShapeError). Whole numbers
// take whole offsets, booleans none (TypeError). Saved: nothing.
Var shardwise_offset(const Var& x, int dim, double offset);
Var shardwise_offset(const Var& x, int dim, const Tensor& offset);

}  // namespace tessera

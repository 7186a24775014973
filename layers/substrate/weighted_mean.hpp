// SPDX-License-Identifier: MIT
// sum(w x) / (sum(w) + eps) over dims, sharded or whole: the two sums are reduced separately and
// divided once; means of shards are never averaged, and eps is added once, after the reduction.
#pragma once

#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// x, w: floating (TypeError), one shape, mesh and placements. The dims, at least one and none twice
// (RangeError), go; the mesh axes that shard them become R. Messages: for each of the two sums one
// all_reduce per such axis. Without eps the weights of no mean may add up to zero.
Var weighted_mean(const Var& x, const Var& w, const std::vector<int>& dims, double eps = 0);

}  // namespace tessera

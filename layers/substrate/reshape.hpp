// SPDX-License-Identifier: MIT
// Operations that change dims and move nothing between ranks. Negative dims count from the end.
// Results are views where that is possible. Messages: none. Saved: sizes only.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// A dim of size 1 before `dim`; S(d >= dim) becomes S(d+1). RangeError.
Var unsqueeze(const Var& x, int dim);
// Without `dim`: its size is 1 (ShapeError), it is not sharded (PlacementError); later shards move
// down.
Var squeeze(const Var& x, int dim);

// One after the other along `dim`, which no mesh axis shards (PlacementError); the other dims and
// the placements are equal. Copies.
Var cat(const std::vector<Var>& parts, int dim);
// Pieces of ceil(size / n) along `dim`, which no mesh axis shards; the last may be smaller and
// there may be fewer than n. Views.
std::vector<Var> chunk(const Var& x, std::int64_t n, int dim);

}  // namespace tessera

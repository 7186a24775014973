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

// Every element r >= 1 times (RangeError) along `dim`, sharded or not, in the order (element,
// copy): shards stay aligned. Copies; the gradient is the sum over the copies.
Var repeat_interleave(const Var& x, std::int64_t r, int dim);

// Dims start to end as one, none of them sharded (PlacementError); later shards move down. A view
// if the dims lie in memory one inside the other, else a copy. RangeError unless start <= end.
Var flatten(const Var& x, int start, int end);
// The dim, which is not sharded, as several; later shards move up. A view. ShapeError unless the
// sizes are positive and their product is that of the dim: none is inferred.
Var unflatten(const Var& x, int dim, const Shape& sizes);
// The same where a mesh axis shards `start`, and no other dim of the range, or `dim`: the shard is
// that of the first of the several dims, whose size the axis divides (UnevenError), and there are
// two or more.
Var flatten_sharded(const Var& x, int start, int end);
Var unflatten_sharded(const Var& x, int dim, const Shape& sizes);

}  // namespace tessera

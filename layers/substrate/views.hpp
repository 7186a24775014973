// SPDX-License-Identifier: MIT
// Distributed tensors seen with other dims: no copy, no message, no tape. The functions on tapes
// (reshape.hpp, reduce.hpp ...) are made of these; each is the gradient of another one.
#pragma once

#include <vector>

#include "tessera/mesh/dtensor.hpp"

namespace tessera {

// Placements after dims have moved: S(d) becomes S(to[d]). PlacementError if to[d] is -1, which is
// for dims that are gone.
Placements renumbered(const Placements& placements, const std::vector<int>& to);
// The numbers of dims of an n-dim tensor once `dims` are gone (-1), or once one is put in at `dim`.
std::vector<int> numbers_without(int ndim, const std::vector<int>& dims);
std::vector<int> numbers_with(int ndim, int dim);

// True if a mesh axis shards the dim. The axis, or -1.
bool is_sharded(const DTensor& x, int dim);
int sharding_axis(const Placements& placements, int dim);
int sharding_axis(const DTensor& x, int dim);

// How a tensor is placed: what a function needs to know of its operand in backward.
struct Form {
  DeviceMesh mesh;
  Shape shape;
  Placements placements;

  Form() = default;
  explicit Form(const DTensor& x) : mesh(x.mesh()), shape(x.shape()), placements(x.placements()) {}
  Shape local() const;
  // The row-major tensor with the values of a contiguous block in any shape.
  DTensor with(const Tensor& contiguous) const;
};
// Product of the sizes of the dims from begin to end.
std::int64_t product(const Shape& shape, int begin, int end);

// A dim of size 1 at `dim`, 0 <= dim <= ndim.
DTensor unsqueezed(const DTensor& x, int dim);
// Without `dim`, which has size 1 and is not sharded.
DTensor squeezed(const DTensor& x, int dim);
// Part of a dim that is not sharded.
DTensor narrowed(const DTensor& x, int dim, std::int64_t begin, std::int64_t length);

// Dims start to end as one, in row-major order of their indices; of these only `start` may be
// sharded. A view if the dims lie in memory one inside the other, else a copy. Its opposite, always
// a view: the dim as several of these sizes, of which the first keeps the shard.
DTensor flattened(const DTensor& x, int start, int end);
DTensor unflattened(const DTensor& x, int dim, const Shape& sizes);
// The same of a block in memory.
Tensor unflattened(const Tensor& x, int dim, const Shape& sizes);

}  // namespace tessera

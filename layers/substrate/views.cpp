// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {

Placements renumbered(const Placements& placements, const std::vector<int>& to) {
  Placements result = placements;
  for (Placement& p : result) {
    if (!is_shard(p)) continue;
    const int dim = to.at(static_cast<std::size_t>(std::get<Shard>(p).dim));
    if (dim < 0)
      throw PlacementError({.problem = fmt::format("dim {} is sharded and cannot be removed",
                                                   std::get<Shard>(p).dim),
                            .operation = "renumbered",
                            .found = format(placements)});
    p = Shard{dim};
  }
  return result;
}

std::vector<int> numbers_without(int ndim, const std::vector<int>& dims) {
  std::vector<int> to;
  int next = 0;
  for (int d = 0; d < ndim; ++d)
    to.push_back(std::find(dims.begin(), dims.end(), d) == dims.end() ? next++ : -1);
  return to;
}

std::vector<int> numbers_with(int ndim, int dim) {
  std::vector<int> to;
  for (int d = 0; d < ndim; ++d) to.push_back(d < dim ? d : d + 1);
  return to;
}

int sharding_axis(const Placements& placements, int dim) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis)
    if (is_shard(placements[axis], dim)) return static_cast<int>(axis);
  return -1;
}

int sharding_axis(const DTensor& x, int dim) {
  return sharding_axis(x.placements(), dim);
}

bool is_sharded(const DTensor& x, int dim) {
  return sharding_axis(x, dim) >= 0;
}

Shape Form::local() const {
  return shape_of(block_of(shape, placements, mesh.shape(), mesh.coordinate()));
}

DTensor Form::with(const Tensor& contiguous) const {
  return DTensor::from_local(contiguous.view(local()), mesh, placements, shape,
                             row_major_strides(shape));
}

std::int64_t product(const Shape& shape, int begin, int end) {
  return std::accumulate(shape.begin() + begin, shape.begin() + end, std::int64_t{1},
                         std::multiplies<>());
}

DTensor unsqueezed(const DTensor& x, int dim) {
  const auto at = static_cast<std::size_t>(dim);
  Shape shape = x.shape();
  Strides strides = x.strides();
  strides.insert(strides.begin() + dim, at < shape.size() ? shape[at] * strides[at] : 1);
  shape.insert(shape.begin() + dim, 1);
  return DTensor::from_local(x.local().unsqueeze(dim), x.mesh(),
                             renumbered(x.placements(), numbers_with(x.ndim(), dim)),
                             std::move(shape), std::move(strides));
}

DTensor squeezed(const DTensor& x, int dim) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape.erase(shape.begin() + dim);
  strides.erase(strides.begin() + dim);
  return DTensor::from_local(x.local().squeeze(dim), x.mesh(),
                             renumbered(x.placements(), numbers_without(x.ndim(), {dim})),
                             std::move(shape), std::move(strides));
}

DTensor narrowed(const DTensor& x, int dim, std::int64_t begin, std::int64_t length) {
  Shape shape = x.shape();
  shape[static_cast<std::size_t>(dim)] = length;
  return DTensor::from_local(x.local().narrow(dim, begin, length), x.mesh(), x.placements(), shape,
                             carry_strides(x.shape(), x.strides(), shape));
}

namespace {

// Dims [start, end] made one; the others and their strides as they are.
Shape merged(Shape shape, int start, int end) {
  for (int d = start + 1; d <= end; ++d)
    shape[static_cast<std::size_t>(start)] *= shape[static_cast<std::size_t>(d)];
  shape.erase(shape.begin() + start + 1, shape.begin() + end + 1);
  return shape;
}

// The strides of the same elements with dims [start, end] made one, if there are such.
std::optional<Strides> merged_strides(const Shape& shape, Strides strides, int start, int end) {
  std::int64_t inner = strides[static_cast<std::size_t>(end)];
  std::int64_t next = 0;  // stride that the next dim outwards must have
  for (auto d = static_cast<std::size_t>(end) + 1; d-- > static_cast<std::size_t>(start);) {
    if (shape[d] == 1) continue;
    if (next == 0) inner = strides[d];
    if (next != 0 && strides[d] != next) return {};
    next = strides[d] * shape[d];
  }
  strides.erase(strides.begin() + start + 1, strides.begin() + end + 1);
  strides[static_cast<std::size_t>(start)] = inner;
  return strides;
}

// A dim taken apart.
Strides split_strides(Strides strides, int dim, const Shape& sizes) {
  Strides parts = row_major_strides(sizes);
  for (std::int64_t& stride : parts) stride *= strides[static_cast<std::size_t>(dim)];
  strides.erase(strides.begin() + dim);
  strides.insert(strides.begin() + dim, parts.begin(), parts.end());
  return strides;
}

Shape split_shape(Shape shape, int dim, const Shape& sizes) {
  shape.erase(shape.begin() + dim);
  shape.insert(shape.begin() + dim, sizes.begin(), sizes.end());
  return shape;
}

}  // namespace

Tensor unflattened(const Tensor& x, int dim, const Shape& sizes) {
  return x.as_strided(split_shape(x.shape(), dim, sizes), split_strides(x.strides(), dim, sizes),
                      0);
}

DTensor unflattened(const DTensor& x, int dim, const Shape& sizes) {
  const int added = static_cast<int>(sizes.size()) - 1;
  std::vector<int> to;
  for (int d = 0; d < x.ndim(); ++d) to.push_back(d <= dim ? d : d + added);
  Shape local = sizes;
  const int axis = sharding_axis(x, dim);
  if (axis >= 0) local.front() /= x.mesh().size(axis);
  return DTensor::from_local(unflattened(x.local(), dim, local), x.mesh(),
                             renumbered(x.placements(), to), split_shape(x.shape(), dim, sizes),
                             split_strides(x.strides(), dim, sizes));
}

DTensor flattened(const DTensor& x, int start, int end) {
  std::vector<int> to;
  for (int d = 0; d < x.ndim(); ++d)
    to.push_back(d <= start ? d : (d <= end ? -1 : d - (end - start)));
  const Placements placements = renumbered(x.placements(), to);
  const Shape shape = merged(x.shape(), start, end);
  const Shape block = merged(x.local().shape(), start, end);
  // Which strides the result has is a matter of the global ones, equal on all ranks.
  const std::optional<Strides> strides = merged_strides(x.shape(), x.strides(), start, end);
  const std::optional<Strides> in_place =
      merged_strides(x.local().shape(), x.local().strides(), start, end);
  if (strides && in_place)
    return DTensor::from_local(x.local().as_strided(block, *in_place, 0), x.mesh(), placements,
                               shape, *strides);
  const Strides order = strides ? carry_strides(shape, *strides, block) : row_major_strides(block);
  const Tensor memory = Tensor::empty({numel(block)}, x.dtype(), x.mesh().device());
  const Tensor y = memory.as_strided(block, order, 0);
  const Shape range(x.local().shape().begin() + start, x.local().shape().begin() + end + 1);
  copy(x.local(), unflattened(y, start, range));
  return DTensor::from_local(y, x.mesh(), placements, shape,
                             strides ? *strides : row_major_strides(shape));
}

}  // namespace tessera

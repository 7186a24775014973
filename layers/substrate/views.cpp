// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/views.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tessera/runtime/error.hpp"

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

int sharding_axis(const DTensor& x, int dim) {
  for (std::size_t axis = 0; axis < x.placements().size(); ++axis)
    if (is_shard(x.placements()[axis], dim)) return static_cast<int>(axis);
  return -1;
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

}  // namespace tessera

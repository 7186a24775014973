// SPDX-License-Identifier: MIT
#include "tessera/mesh/shard.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

// The dim that `placement` shards, checked against the tensor and the axes before it; -1 if none.
int sharded_dim(const Placements& placements, std::size_t axis, const Shape& global,
                const char* operation, const char* tensor) {
  if (!is_shard(placements[axis])) return -1;
  const int dim = std::get<Shard>(placements[axis]).dim;
  if (dim < 0 || dim >= static_cast<int>(global.size()))
    throw RangeError({.problem = "a placement shards a dim that the tensor does not have",
                      .operation = operation,
                      .tensor = tensor,
                      .found = format(placements) + " for shape " + format_shape(global),
                      .expected = fmt::format("S(d) with 0 <= d < {}", global.size())});
  for (std::size_t other = 0; other < axis; ++other)
    if (is_shard(placements[other], dim))
      throw PlacementError(
          {.problem = fmt::format("dim {} is sharded by mesh axes {} and {}", dim, other, axis),
           .operation = operation,
           .tensor = tensor,
           .found = format(placements) + " for shape " + format_shape(global),
           .expected = "at most one mesh axis for a dim"});
  return dim;
}

void check_even(const Placements& placements, std::size_t axis, int dim, int parts,
                const Shape& global, const char* operation, const char* tensor) {
  const std::int64_t size = global[static_cast<std::size_t>(dim)];
  if (size % parts == 0) return;
  const std::int64_t next = (size / parts + 1) * parts;
  throw UnevenError({.problem = fmt::format("dim {} of size {} does not divide by mesh axis {} of "
                                            "size {}",
                                            dim, size, axis, parts),
                     .operation = operation,
                     .tensor = tensor,
                     .found = format_shape(global) + " " + format(placements),
                     .expected = fmt::format("a multiple of {}", parts),
                     .hint = fmt::format("the next valid size is {}", next)});
}

}  // namespace

Interval intersect(Interval a, Interval b) {
  const Interval both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.empty() ? Interval{} : both;
}

Interval shard_of(std::int64_t size, int parts, int index) {
  const std::int64_t small = size / parts;
  const std::int64_t larger = size % parts;  // so many parts have one element more
  const auto start = [&](std::int64_t i) { return i * small + std::min(i, larger); };
  return {start(index), start(index + 1)};
}

std::vector<Interval> block_of(const Shape& global, const Placements& placements,
                               const std::vector<int>& mesh_shape,
                               const std::vector<int>& coordinate, const char* operation,
                               const char* tensor) {
  if (placements.size() != mesh_shape.size())
    throw MeshError({.problem = "one placement per mesh axis is needed",
                     .operation = operation,
                     .tensor = tensor,
                     .found = format(placements),
                     .expected = fmt::format("{} placements", mesh_shape.size())});
  std::vector<Interval> block(global.size());
  for (std::size_t d = 0; d < global.size(); ++d) block[d] = {0, global[d]};
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const int dim = sharded_dim(placements, axis, global, operation, tensor);
    if (dim < 0) continue;
    check_even(placements, axis, dim, mesh_shape[axis], global, operation, tensor);
    block[static_cast<std::size_t>(dim)] =
        shard_of(global[static_cast<std::size_t>(dim)], mesh_shape[axis], coordinate[axis]);
  }
  return block;
}

Shape shape_of(const std::vector<Interval>& block) {
  Shape shape;
  for (const Interval& interval : block) shape.push_back(interval.size());
  return shape;
}

}  // namespace tessera

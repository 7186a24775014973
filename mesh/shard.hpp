// SPDX-License-Identifier: MIT
// The one place where sizes and offsets of shards are computed.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/mesh/placement.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

struct Interval {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end > begin ? end - begin : 0; }
  bool empty() const { return end <= begin; }
  bool operator==(const Interval&) const = default;
};
Interval intersect(Interval a, Interval b);  // {0,0} if empty

// Part `index` of `size` elements cut into `parts` contiguous parts, sizes floor or ceil, larger
// first; an empty part begins and ends at `size`. Equal parts if `parts` divides `size`.
Interval shard_of(std::int64_t size, int parts, int index);

// Block of a global tensor at one mesh coordinate: one interval per tensor dim. `mesh_shape` and
// `coordinate` are per mesh axis. A dim may be sharded by one axis only (PlacementError), S(d)
// needs d < ndim (RangeError), every sharded dim must divide (UnevenError names dim, size, axis and
// the next size that divides); `operation` and `tensor` go into the message.
std::vector<Interval> block_of(const Shape& global, const Placements& placements,
                               const std::vector<int>& mesh_shape,
                               const std::vector<int>& coordinate, const char* operation = "shard",
                               const char* tensor = "");
Shape shape_of(const std::vector<Interval>& block);

}  // namespace tessera

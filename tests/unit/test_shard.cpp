// SPDX-License-Identifier: MIT
// ranks: 1
#include <algorithm>
#include <random>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/mesh/shard.hpp"

using namespace tessera;

namespace {

// Contiguous parts from 0 to size, larger ones first, sizes differing by one at most.
template <class Cut>
bool tiles_exactly_once(std::int64_t size, int parts, const Cut& cut) {
  std::int64_t end = 0;
  std::int64_t before = size / parts + 1;
  for (int index = 0; index < parts; ++index) {
    const Interval part = cut(size, parts, index);
    if (part.begin != end || part.size() > before || part.size() < size / parts) return false;
    before = part.size();
    end = part.end;
  }
  return end == size;
}

}  // namespace

TEST_CASE("parts of every size tile it exactly once", "[shard]") {
  for (std::int64_t size = 0; size <= 40; ++size)
    for (int parts = 1; parts <= 12; ++parts) {
      CAPTURE(size, parts);
      REQUIRE(tiles_exactly_once(size, parts, shard_of));
      for (int index = int(size); index < parts; ++index)
        REQUIRE(shard_of(size, parts, index) == Interval{size, size});
    }
  // The property can fail: rounding down loses the rest, rounding up overlaps it.
  const auto down = [](std::int64_t size, int parts, int index) {
    return Interval{index * (size / parts), (index + 1) * (size / parts)};
  };
  const auto last_larger = [](std::int64_t size, int parts, int index) {
    return Interval{size * index / parts, size * (index + 1) / parts};
  };
  CHECK(tiles_exactly_once(8, 2, down));
  CHECK_FALSE(tiles_exactly_once(7, 2, down));
  CHECK_FALSE(tiles_exactly_once(7, 2, last_larger));
}

TEST_CASE("large sizes do not overflow", "[shard]") {
  const std::int64_t size = (std::int64_t{1} << 60) + 5;
  CHECK(shard_of(size, 7, 6).end == size);
  CHECK(shard_of(size, 7, 0).begin == 0);
}

TEST_CASE("intersections", "[shard]") {
  CHECK(intersect({0, 5}, {3, 9}) == Interval{3, 5});
  CHECK(intersect({0, 3}, {3, 9}) == Interval{});
  CHECK(intersect({4, 9}, {0, 2}) == Interval{});
}

namespace {

// How often the blocks of all coordinates cover each element.
std::vector<int> cover(const Shape& shape, const Placements& placements,
                       const std::vector<int>& mesh) {
  std::vector<int> count(static_cast<std::size_t>(numel(shape)));
  for (int d = 0; d < mesh[0]; ++d)
    for (int i = 0; i < mesh[1]; ++i)
      for (int j = 0; j < mesh[2]; ++j) {
        const auto block = block_of(shape, placements, mesh, {d, i, j});
        for (std::int64_t a = block[0].begin; a < block[0].end; ++a)
          for (std::int64_t b = block[1].begin; b < block[1].end; ++b)
            for (std::int64_t c = block[2].begin; c < block[2].end; ++c)
              ++count[static_cast<std::size_t>((a * shape[1] + b) * shape[2] + c)];
      }
  return count;
}

}  // namespace

TEST_CASE("blocks of a mesh tile the tensor, as often as it is replicated", "[shard]") {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto pick = [&](int most) { return 1 + static_cast<int>(random() % unsigned(most)); };
    const std::vector<int> mesh{pick(3), pick(4), pick(4)};
    std::vector<int> dims{0, 1, 2, -1, -1};
    std::shuffle(dims.begin(), dims.end(), random);
    Shape shape{pick(3), pick(3), pick(3)};
    Placements placements;
    int copies = 1;
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (dims[axis] < 0) {
        placements.push_back(Replicate{});
        copies *= mesh[axis];
      } else {
        placements.push_back(Shard{dims[axis]});
        shape[static_cast<std::size_t>(dims[axis])] *= mesh[axis];
      }
    }
    const std::vector<int> count = cover(shape, placements, mesh);
    REQUIRE(std::all_of(count.begin(), count.end(), [&](int n) { return n == copies; }));
  }
}

TEST_CASE("blocks that cannot be are refused", "[shard]") {
  const std::vector<int> mesh{1, 2, 3};
  const std::vector<int> at{0, 0, 0};
  const Shape shape{2, 8, 9};
  require_error<UnevenError>(
      [&] {
        block_of({2, 7, 9}, {Replicate{}, Shard{1}, Replicate{}}, mesh, at, "op", "z");
      },
      "op", "'z'", "dim 1", "size 7", "mesh axis 1 of size 2", "next valid size is 8", "[2, 7, 9]");
  require_error<PlacementError>(
      [&] {
        block_of(shape, {Replicate{}, Shard{1}, Shard{1}}, mesh, at, "op", "z");
      },
      "dim 1", "axes 1 and 2", "(R,S1,S1)");
  require_error<RangeError>(
      [&] {
        block_of(shape, {Replicate{}, Shard{3}, Replicate{}}, mesh, at, "op", "z");
      },
      "(R,S3,R)", "d < 3");
  require_error<RangeError>(
      [&] {
        block_of({}, {Shard{0}, Replicate{}, Replicate{}}, mesh, at);
      },
      "(S0,R,R)");
  require_error<MeshError>([&] { block_of(shape, {Shard{0}}, mesh, at); }, "3 placements");
  CHECK(shape_of(block_of(shape, {Shard{0}, Shard{1}, Shard{2}}, mesh, {0, 1, 2})) ==
        Shape{2, 4, 3});
  CHECK(block_of(shape, {Shard{0}, Shard{1}, Shard{2}}, mesh, {0, 1, 2})[2] == Interval{6, 9});
}

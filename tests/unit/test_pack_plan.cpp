// SPDX-License-Identifier: MIT
// ranks: 1
// Plans of packing, for all ranks at once.
#include <random>

#include "support/catch.hpp"
#include "tessera/layers/schedule/pack_plan.hpp"

using namespace tessera;

namespace {

using Mask = std::vector<std::uint8_t>;

// The plans of all parts of lines whose mask is [lines, parts, length].
std::vector<PackPlan> plans_of(const Mask& mask, std::int64_t lines, int parts, std::int64_t length,
                               std::int64_t window) {
  std::vector<PackPlan> plans;
  std::vector<std::int64_t> counts;
  for (int part = 0; part < parts; ++part) {
    Mask own;
    for (std::int64_t line = 0; line < lines; ++line) {
      const auto begin = mask.begin() + (line * parts + part) * length;
      own.insert(own.end(), begin, begin + length);
    }
    plans.push_back(plan_of_mask(own, lines));
    counts.insert(counts.end(), plans.back().counts.begin(), plans.back().counts.end());
  }
  std::int64_t longest = 0;
  for (int part = 0; part < parts; ++part) {
    PackPlan& plan = plans[static_cast<std::size_t>(part)];
    plan.parts = parts;
    plan.me = part;
    plan.counts = counts;
    for (std::int64_t line = 0; line < lines; ++line) longest = std::max(longest, plan.total(line));
  }
  for (PackPlan& plan : plans) plan.packed = packed_length(longest, window, parts) / parts;
  return plans;
}

// What row k of `from`, in the part for `peer`, is: all ranks' ends as one move of line numbers and
// positions in the whole axis.
std::vector<std::int64_t> wholes(const PackEnd& end, int peer, int me, std::int64_t length) {
  std::int64_t begin = 0;
  for (int p = 0; p < peer; ++p) begin += end.counts[static_cast<std::size_t>(p)];
  std::vector<std::int64_t> all;
  for (std::int64_t k = 0; k < end.counts[static_cast<std::size_t>(peer)]; ++k) {
    const std::int64_t row = end.rows[static_cast<std::size_t>(begin + k)];
    all.push_back(row / length * 1000 + me * length + row % length);
  }
  return all;
}

}  // namespace

TEST_CASE("the two ends of every pair of ranks agree, and the move is the stable left pack") {
  std::mt19937 engine(1);
  const auto below = [&](unsigned n) { return static_cast<int>(engine() % n); };
  for (int trial = 0; trial < 200; ++trial) {
    const int parts = 1 + below(5);
    const std::int64_t lines = 1 + below(3), length = 1 + below(6);
    const int density = below(5);  // of four; 0: nothing is valid
    Mask mask(static_cast<std::size_t>(lines * parts * length));
    for (auto& m : mask) m = below(4) < density;
    const auto plans = plans_of(mask, lines, parts, length, 2);
    const std::vector<std::int64_t> same = [&] {
      std::vector<std::int64_t> all;
      for (std::int64_t line = 0; line < lines; ++line) all.push_back(line);
      return all;
    }();
    std::int64_t moved = 0;
    for (int a = 0; a < parts; ++a)
      for (int b = 0; b < parts; ++b) {
        const PackPlan& from = plans[static_cast<std::size_t>(a)];
        const PackPlan& to = plans[static_cast<std::size_t>(b)];
        const auto source = wholes(original_end(from, same), b, a, length);
        const auto target = wholes(packed_end(to, same), a, b, to.packed);
        REQUIRE(source.size() == target.size());
        moved += std::ssize(source);
        for (std::size_t k = 0; k < source.size(); ++k) {
          const std::int64_t line = source[k] / 1000, at = source[k] % 1000;
          REQUIRE(target[k] / 1000 == line);
          const auto begin = mask.begin() + line * parts * length;
          REQUIRE(*(begin + at) == 1);
          REQUIRE(target[k] % 1000 == std::count(begin, begin + at, 1));  // rank among the valid
        }
      }
    CHECK(moved == std::count(mask.begin(), mask.end(), 1));
  }
}

TEST_CASE("packed lengths are whole windows on every rank, at least one") {
  CHECK(packed_length(0, 32, 3) == 96);
  CHECK(packed_length(1, 32, 3) == 96);
  CHECK(packed_length(96, 32, 3) == 96);
  CHECK(packed_length(97, 32, 3) == 192);
}

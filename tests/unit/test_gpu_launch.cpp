// SPDX-License-Identifier: MIT
// ranks: 1
// The launcher of GPU kernels, as the imitation walks it: which items, rows and elements are
// visited, and in which order the states of lanes are joined. Bodies write to the host here, as
// they may on the imitation.
#define TESSERA_GPU_NAMESPACE gpu_imitation
#define TESSERA_KERNELS_NAMESPACE gpu_imitation
#include <algorithm>
#include <vector>

#include "support/catch.hpp"
#include "support/gpu.hpp"
#include "tessera/runtime/gpu/reduce.hpp"

namespace tessera {
namespace {

using gpu_imitation::Lanes;
using gpu_imitation::Width;

const std::vector<std::int64_t> ragged{0, 1, 31, 32, 33, 255, 257, 1000};

// How often each item was visited.
template <class Start>
std::vector<int> visits(std::int64_t count, const Start& start) {
  std::vector<int> seen(static_cast<std::size_t>(count), 0);
  gpu_imitation::gpu(0);  // becomes the thread's device
  start(seen.data());
  synchronize(imitation);
  return seen;
}
bool once_each(const std::vector<int>& seen) {
  return std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; });
}

struct Visit {
  int* seen;
  void operator()(std::int64_t item) const { ++seen[item]; }
};
// `skipped` of the last elements are left out: 0 but for the control.
struct VisitRow {
  int* seen;
  std::int64_t count, skipped;
  void operator()(std::int64_t row, const Lanes& lanes) const {
    lanes.each(count - skipped, [&](std::int64_t i) { ++seen[row * count + i]; });
  }
};

TEST_CASE("every item is visited once") {
  for (const int threads : block_sizes) {
    const BlockThreads forced(threads);
    for (const std::int64_t count : ragged) {
      CAPTURE(threads, count);
      CHECK(once_each(visits(count, [&](int* seen) {
        gpu_imitation::for_each("visit", {0, count}, Visit{seen});
      })));
    }
  }
  const BlockThreads forced(32);  // more than the largest grid has threads
  CHECK(once_each(visits(1200001, [&](int* seen) {
    gpu_imitation::for_each("visit", {0, 1200001}, Visit{seen});
  })));
}

TEST_CASE("every element of every row is visited once") {
  for (const int threads : block_sizes) {
    const BlockThreads forced(threads);
    for (const Width width : {Width::lane, Width::warp, Width::block})
      for (const std::int64_t rows : {1, 7, 33, 300})
        for (const std::int64_t count : ragged) {
          CAPTURE(threads, static_cast<int>(width), rows, count);
          const auto with = [&](std::int64_t skipped) {
            return once_each(visits(rows * count, [&](int* seen) {
              gpu_imitation::for_each_row("visit", {0, rows}, width,
                                          VisitRow{seen, count, skipped});
            }));
          };
          CHECK(with(0));
          if (count > 0) CHECK_FALSE(with(1));  // a lost tail is noticed
        }
  }
}

// What was joined to what, and in which order: no two orders have the same number.
struct Trail {
  std::uint64_t value = 1;
  void add(std::int64_t i) { value = value * 1099511628211u + static_cast<std::uint64_t>(i) + 7; }
  void join(Trail other) { value = (value ^ (value >> 29)) * 0xbf58476d1ce4e5b9u + other.value; }
};
struct TrailOfRow {
  std::int64_t count;
  std::uint64_t* out;
  int* finished;
  void operator()(std::int64_t row, const Lanes& lanes) const {
    const Trail trail =
        lanes.reduce(Trail{}, count, [&](Trail& own, std::int64_t i) { own.add(row + i); });
    lanes.once([&] {
      out[row] = trail.value;
      ++finished[row];
    });
  }
};
// By the contract of Lanes::reduce: each lane in ascending order, then halves of a warp, then warp
// after warp. `step_first`: the halves from the smallest to the largest, which is wrong.
std::uint64_t trail_of(std::int64_t row, std::int64_t count, std::int64_t width, bool step_first) {
  std::vector<Trail> lanes(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < count; ++i) lanes[static_cast<std::size_t>(i % width)].add(row + i);
  const std::size_t warp = static_cast<std::size_t>(std::min<std::int64_t>(width, 32));
  Trail all;
  for (std::size_t w = 0; w < lanes.size(); w += warp) {
    if (step_first) {
      for (std::size_t step = 1; step < warp; step *= 2)
        for (std::size_t l = 0; l < warp; l += 2 * step) lanes[w + l].join(lanes[w + l + step]);
    } else {
      for (std::size_t step = warp / 2; step > 0; step /= 2)
        for (std::size_t l = 0; l < step; ++l) lanes[w + l].join(lanes[w + l + step]);
    }
    if (w == 0)
      all = lanes[0];
    else
      all.join(lanes[w]);
  }
  return all.value;
}

TEST_CASE("the states of lanes are joined in the order of warps and blocks") {
  gpu_imitation::gpu(0);
  for (const int threads : block_sizes) {
    const BlockThreads forced(threads);
    for (const Width width : {Width::lane, Width::warp, Width::block}) {
      const std::int64_t lanes = width == Width::lane ? 1 : width == Width::warp ? 32 : threads;
      for (const std::int64_t count : ragged) {
        CAPTURE(threads, lanes, count);
        constexpr std::int64_t rows = 9;
        std::vector<std::uint64_t> out(rows);
        std::vector<int> finished(rows, 0);
        gpu_imitation::for_each_row("trail", {0, rows}, width,
                                    TrailOfRow{count, out.data(), finished.data()});
        synchronize(imitation);
        CHECK(once_each(finished));
        bool right = true, noticed = lanes == 1 || count < 2;
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::uint64_t found = out[static_cast<std::size_t>(row)];
          right &= found == trail_of(row, count, lanes, false);
          noticed |= found != trail_of(row, count, lanes, true);
        }
        CHECK(right);
        CHECK(noticed);  // another order has another trail
      }
    }
  }
}

// Sums of whole numbers, exact in any order.
struct WholeSum {
  std::int64_t value = 0;
  void join(WholeSum other) { value += other.value; }
};
// Two ways to join wrongly.
struct ForgetfulSum : WholeSum {
  void join(ForgetfulSum) {}
};
struct GreedySum : WholeSum {
  void join(GreedySum other) { value += other.value + 1; }
};
template <class S>
struct SumOfRow {
  using State = S;
  std::int64_t* out;
  void add(State& own, std::int64_t row, std::int64_t i) const { own.value += row + i % 13; }
  void finish(std::int64_t row, const State& state) const { out[row] = state.value; }
};
template <class State>
bool sums_are_right(std::int64_t rows, std::int64_t count, Width width) {
  gpu_imitation::gpu(0);
  std::vector<std::int64_t> out(static_cast<std::size_t>(rows), -1);
  gpu_imitation::reduce_rows("sum", {0, rows}, count, width, SumOfRow<State>{out.data()});
  synchronize(imitation);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t sum = row * count;
    for (std::int64_t i = 0; i < count; ++i) sum += i % 13;
    if (out[static_cast<std::size_t>(row)] != sum) return false;
  }
  return true;
}

TEST_CASE("rows are reduced whole or in parts") {
  for (const int threads : block_sizes) {
    const BlockThreads forced(threads);
    for (const Width width : {Width::lane, Width::warp, Width::block})
      for (const std::int64_t rows : {1, 3, 130})
        for (const std::int64_t count : {0, 1, 33, 257, 1000, 20011}) {
          CAPTURE(threads, static_cast<int>(width), rows, count);
          CHECK(sums_are_right<WholeSum>(rows, count, width));
        }
  }
  CHECK(gpu_imitation::parts_of(1, 20011, Width::warp).count > 1);
  CHECK(gpu_imitation::parts_of(3, 20011, Width::lane).count > 32);
  CHECK(gpu_imitation::parts_of(1 << 17, 20011, Width::lane).count == 1);
}

TEST_CASE("a wrong join is noticed") {
  CHECK(sums_are_right<WholeSum>(3, 257, Width::warp));
  for (const Width width : {Width::warp, Width::block}) {
    CHECK_FALSE(sums_are_right<ForgetfulSum>(3, 257, width));
    CHECK_FALSE(sums_are_right<GreedySum>(3, 257, width));
  }
  CHECK_FALSE(sums_are_right<ForgetfulSum>(3, 20011, Width::lane));  // of parts
}

}  // namespace
}  // namespace tessera

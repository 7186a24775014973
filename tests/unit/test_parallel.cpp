// SPDX-License-Identifier: MIT
// ranks: 1
#include "tessera/runtime/parallel.hpp"

#include <sys/times.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/errors.hpp"
#include "tessera/runtime/memory.hpp"

using namespace tessera;

namespace {

struct Call {
  std::int64_t begin, end;
  int lane;
};

std::vector<Call> calls_of(std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::vector<Call> calls;
  run_lanes(cpu_device, count, grain, [&](std::int64_t begin, std::int64_t end, int lane) {
    std::lock_guard lock(mutex);
    calls.push_back({begin, end, lane});
  });
  std::sort(calls.begin(), calls.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  return calls;
}

class Threads {  // sets the number of threads for one test
 public:
  explicit Threads(int count) : before_(thread_count()) { set_thread_count(count); }
  ~Threads() { set_thread_count(before_); }

 private:
  int before_;
};

}  // namespace

TEST_CASE("lanes cover the range once, in multiples of the grain") {
  for (const int threads : {1, 2, 3, 8}) {
    const Threads set(threads);
    for (const std::int64_t count : {0, 1, 5, 16, 17, 1000})
      for (const std::int64_t grain : {1, 4, 16, 5000}) {
        CAPTURE(threads, count, grain);
        const auto calls = calls_of(count, grain);
        std::int64_t at = 0;
        for (const Call& call : calls) {
          CHECK(call.begin == at);
          CHECK(call.begin % grain == 0);
          CHECK(call.end > call.begin);
          CHECK((call.lane >= 0 && call.lane < lane_count(cpu_device)));
          at = call.end;
        }
        CHECK(at == count);
        const std::int64_t units = (count + grain - 1) / grain;
        CHECK(static_cast<std::int64_t>(calls.size()) == std::min<std::int64_t>(threads, units));
      }
  }
}

TEST_CASE("lanes run at the same time, and nested lanes on their own thread") {
  const Threads set(3);
  CHECK_FALSE(inside_lane());
  std::atomic<int> arrived{0};
  run_lanes(cpu_device, 3, 1, [&](std::int64_t, std::int64_t, int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();  // passes only if all three run
    const auto self = std::this_thread::get_id();
    int inner = 0;
    if (!inside_lane() || lane_count(cpu_device) != 1) throw std::runtime_error("not inside");
    run_lanes(cpu_device, 10, 1, [&](std::int64_t begin, std::int64_t end, int lane) {
      if (self != std::this_thread::get_id() || lane != 0 || end - begin != 10)
        throw std::runtime_error("left its thread");
      ++inner;
    });
    if (inner != 1) throw std::runtime_error("cut a nested range");
  });
  CHECK(arrived == 3);
  CHECK_FALSE(inside_lane());
}

TEST_CASE("an exception of a lane is rethrown after all have ended") {
  const Threads set(4);
  std::atomic<int> ended{0};
  const auto run = [&] {
    run_lanes(cpu_device, 4, 1, [&](std::int64_t begin, std::int64_t, int) {
      if (begin == 1) throw std::runtime_error("first");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++ended;
      if (begin == 3) throw std::runtime_error("second");
    });
  };
  try {
    run();
    FAIL("nothing was thrown");
  } catch (const std::runtime_error& error) {
    CHECK(std::string(error.what()) == "first");  // the lowest lane's
  }
  CHECK(ended == 3);
  CHECK(calls_of(4, 1).size() == 4);  // the pool is alive
}

TEST_CASE("lanes see the scope and purpose of their caller") {
  const Threads set(3);
  const Scope scope("outer");
  const PurposeScope purpose(Purpose::gradient);
  std::atomic<int> wrong{0};
  run_lanes(cpu_device, 3, 1, [&](std::int64_t, std::int64_t, int) {
    wrong += current_scope() != "outer" || current_purpose() != Purpose::gradient;
  });
  CHECK(wrong == 0);
}

TEST_CASE("several threads may run lanes at once") {
  const Threads set(2);
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> users;
  for (int u = 0; u < 4; ++u)
    users.emplace_back([&] {
      for (int i = 0; i < 100; ++i)
        run_lanes(cpu_device, 10, 1,
                  [&](std::int64_t begin, std::int64_t end, int) { sum += end - begin; });
    });
  for (std::thread& user : users) user.join();
  CHECK(sum == 4 * 100 * 10);
}

TEST_CASE("idle threads do not spin") {
  const Threads set(4);
  calls_of(4, 1);
  tms before{}, after{};
  ::times(&before);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::times(&after);
  const auto ticks = after.tms_utime + after.tms_stime - before.tms_utime - before.tms_stime;
  // Three spinning threads would use 90 ticks of 10 ms; MPI's own thread may use a few.
  CHECK(ticks <= 10);
}

TEST_CASE("a rank has at least one thread, chunks at least 16 rows") {
  require_error<UsageError>([] { set_thread_count(0); }, "set_thread_count", "0");
  CHECK(chunk_rows(cpu_device, std::int64_t{1} << 40) == 16);
  CHECK(chunk_rows(cpu_device, 512) % 16 == 0);
  CHECK(chunk_rows(cpu_device, 512) > chunk_rows(cpu_device, 4096));
}

TEST_CASE("chunks of a given size are the same on every device") {
  const Device gpu{DeviceKind::imitation, 0};
  CHECK(chunk_rows(gpu, 512) > chunk_rows(cpu_device, 512));
  set_chunk_bytes(1 << 16);
  CHECK(chunk_rows(cpu_device, 512) == 128);
  CHECK(chunk_rows(gpu, 512) == 128);
  set_chunk_bytes(0);
  CHECK(chunk_rows(gpu, 512) > chunk_rows(cpu_device, 512));
  require_error<UsageError>([] { set_chunk_bytes(-1); }, "set_chunk_bytes", "-1");
}

// SPDX-License-Identifier: MIT
#include "tessera/runtime/parallel.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera {
namespace {

constexpr int kMostThreads = 4096;  // the system has room for no more

thread_local bool t_inside_lane = false;

class InsideLane {
 public:
  InsideLane() : before_(t_inside_lane) { t_inside_lane = true; }
  ~InsideLane() { t_inside_lane = before_; }
  InsideLane(const InsideLane&) = delete;
  InsideLane& operator=(const InsideLane&) = delete;

 private:
  bool before_;
};

// Threads that sleep until there is a task for them. They are made when first needed and end with
// end() or the process; no static destructor waits for them.
class Pool {
 public:
  // Runs task(0) here and task(1..lanes-1) on the pool; false if the pool serves another thread.
  bool run(int lanes, const std::function<void(int)>& task) {
    std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy.owns_lock()) return false;
    {
      std::lock_guard lock(mutex_);
      while (static_cast<int>(workers_.size()) < lanes - 1)
        workers_.emplace_back([this, lane = static_cast<int>(workers_.size()) + 1, seen = round_] {
          serve(lane, seen);
        });
      task_ = &task;
      lanes_ = lanes;
      running_ = lanes - 1;
      ++round_;
    }
    wake_.notify_all();
    task(0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    return true;
  }

  void end() {
    const std::lock_guard busy(busy_);
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    ending_ = false;
  }

 private:
  void serve(int lane, std::uint64_t seen) {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return ending_ || round_ != seen; });
      if (ending_) return;
      seen = round_;
      if (lane >= lanes_) continue;
      const auto& task = *task_;
      lock.unlock();
      task(lane);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex busy_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(int)>* task_ = nullptr;
  std::uint64_t round_ = 0;
  int lanes_ = 0;
  int running_ = 0;
  bool ending_ = false;
  std::vector<std::thread> workers_;
};

Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

int threads_of_affinity_mask() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Of TESSERA_THREADS; 0 if it is not set.
int threads_of_environment() {
  return static_cast<int>(number_from_environment("TESSERA_THREADS", 0, 1, kMostThreads));
}

struct ThreadCounts {
  int chosen = threads_of_environment();  // or 0
  int otherwise = threads_of_affinity_mask();
};
ThreadCounts& threads() {
  static ThreadCounts counts;
  return counts;
}

void check_threads(int count, const char* operation) {
  if (count < 1 || count > kMostThreads)
    throw UsageError({.problem = "not a number of threads of a rank",
                      .operation = operation,
                      .found = fmt::format("{}", count),
                      .expected = fmt::format("1 to {}", kMostThreads)});
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

int thread_count() {
  return threads().chosen > 0 ? threads().chosen : threads().otherwise;
}

void set_thread_count(int count) {
  check_threads(count, "set_thread_count");
  threads().chosen = count;
}

int set_default_thread_count(int count) {
  check_threads(count, "set_default_thread_count");
  return std::exchange(threads().otherwise, count);
}

void end_threads() {
  pool().end();
}

bool inside_lane() {
  return t_inside_lane;
}

int lane_count(Device device) {
  return !is_gpu(device) && !inside_lane() ? thread_count() : 1;
}

void run_lanes(Device device, std::int64_t count, std::int64_t grain,
               const std::function<void(std::int64_t begin, std::int64_t end, int lane)>& body) {
  if (count <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t units = ceil_div(count, grain);
  const int lanes = static_cast<int>(std::min<std::int64_t>(lane_count(device), units));
  if (lanes == 1) return body(0, count, 0);

  const LedgerContext context = ledger_context();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(lanes));
  const auto task = [&](int lane) {
    const std::int64_t begin = units * lane / lanes * grain;
    const std::int64_t end = std::min(units * (lane + 1) / lanes * grain, count);
    try {
      InsideLane inside;
      LedgerContextScope scope(context);
      body(begin, end, lane);
    } catch (...) {
      errors[static_cast<std::size_t>(lane)] = std::current_exception();
    }
  };
  if (!pool().run(lanes, task))
    for (int lane = 0; lane < lanes; ++lane) task(lane);
  for (const auto& error : errors)
    if (error) std::rethrow_exception(error);
}

namespace {

std::atomic<std::int64_t> chosen_chunk_bytes{0};

std::int64_t chunk_bytes(Device device) {
  static const std::int64_t half_l2 = [] {
    const std::int64_t l2 = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return (l2 > 0 ? l2 : std::int64_t{1} << 20) / 2;
  }();
  if (const std::int64_t chosen = chosen_chunk_bytes.load(); chosen != 0) return chosen;
  return is_gpu(device) ? std::int64_t{256} << 20 : half_l2;
}

}  // namespace

void set_chunk_bytes(std::int64_t bytes) {
  if (bytes < 0)
    throw UsageError({.problem = "negative size",
                      .operation = "set_chunk_bytes",
                      .found = fmt::format("{}", bytes),
                      .expected = "bytes, or 0 for the default"});
  chosen_chunk_bytes = bytes;
}

std::int64_t chunk_rows(Device device, std::int64_t bytes_per_row) {
  const std::int64_t bytes = chunk_bytes(device);
  return std::max<std::int64_t>(bytes / std::max<std::int64_t>(bytes_per_row, 1) / 16 * 16, 16);
}

}  // namespace tessera

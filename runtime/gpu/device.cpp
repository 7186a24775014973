// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/kernels.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/out_of_memory.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

constexpr int kNaN = 0xff;  // a byte of a NaN in every floating type

std::string name_of(int index) {
  return fmt::format("{}:{}", driver::kName, index);
}

std::size_t at_least_one(std::int64_t bytes) {
  return static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
}

// At least 512 bytes, and eight sizes for each doubling, so that sizes that are nearly the same
// share their blocks.
std::size_t class_of(std::int64_t bytes) {
  const std::size_t wanted = at_least_one(bytes);
  const std::size_t unit = std::max<std::size_t>(512, std::bit_floor(wanted) / 8);
  return (wanted + unit - 1) / unit * unit;
}

// Events are made once and used again. Thread safe.
class Events {
 public:
  driver::Event take() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) return driver::create_event();
    const driver::Event event = idle_.back();
    idle_.pop_back();
    return event;
  }
  void give(driver::Event event) {
    std::lock_guard lock(mutex_);
    idle_.push_back(event);
  }

 private:
  std::mutex mutex_;
  std::vector<driver::Event> idle_;
};

class Recorded final : public Mark {
 public:
  Recorded(Events& events, driver::Stream stream) : events_(events), event_(events.take()) {
    driver::record(event_, stream);
  }
  ~Recorded() override { events_.give(event_); }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;
  bool done() const override { return driver::done(event_); }
  void wait() const override { driver::wait(event_); }
  driver::Event event() const { return event_; }

 private:
  Events& events_;
  driver::Event event_;
};

driver::Event event_of(const Mark& mark) {
  const auto* recorded = dynamic_cast<const Recorded*>(&mark);
  if (recorded == nullptr)
    throw DeviceError({.problem = "the event belongs to another kind of device",
                       .operation = "make_wait",
                       .expected = fmt::format("an event of {}", driver::kName)});
  return recorded->event();
}

// Memory that belongs to no stream, kept when freed. A block is handed out again when the work that
// was in flight as it was freed is done, for whoever gets it may not wait for any stream.
class Blocks {
 public:
  using Marks = std::vector<MarkPtr>;
  Blocks(void* (*fresh)(std::size_t), void (*release)(void*) noexcept)
      : fresh_(fresh), release_(release) {}

  void* take(std::size_t bytes) {
    if (void* data = take_used(bytes)) return data;
    void* data = fresh_(bytes);
    if (data == nullptr) return nullptr;
    if (driver::kPoisons) driver::fill(data, kNaN, bytes);
    std::lock_guard lock(mutex_);
    all_[static_cast<const char*>(data)] = bytes;
    return data;
  }

  bool holds(const void* data) {
    std::lock_guard lock(mutex_);
    const auto* place = static_cast<const char*>(data);
    const auto next = all_.upper_bound(place);
    return next != all_.begin() && place < std::prev(next)->first + std::prev(next)->second;
  }

  void give(void* data, std::size_t bytes, Marks in_flight) {
    std::lock_guard lock(mutex_);
    used_[bytes].push_back({data, std::move(in_flight)});
  }

  void release_used() {
    std::lock_guard lock(mutex_);
    for (const auto& [bytes, blocks] : used_)
      for (const Block& block : blocks) {
        all_.erase(static_cast<const char*>(block.data));
        release_(block.data);
      }
    used_.clear();
  }

 private:
  struct Block {
    void* data;
    Marks in_flight;
    bool idle() const {
      return std::all_of(in_flight.begin(), in_flight.end(),
                         [](const MarkPtr& mark) { return mark->done(); });
    }
  };

  // One that is idle, else the one that was freed first.
  void* take_used(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    std::vector<Block>& blocks = used_[bytes];
    if (blocks.empty()) return nullptr;
    auto block = std::find_if(blocks.begin(), blocks.end(),
                              [](const Block& candidate) { return candidate.idle(); });
    if (block == blocks.end()) block = blocks.begin();
    for (const MarkPtr& mark : block->in_flight) mark->wait();
    void* data = block->data;
    blocks.erase(block);
    if (driver::kPoisons) driver::fill(data, kNaN, bytes);
    return data;
  }

  void* (*fresh_)(std::size_t);
  void (*release_)(void*) noexcept;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<Block>> used_;
  std::map<const char*, std::size_t, std::less<>> all_;
};

const KernelTable kernels = table_named(driver::kName);

// All its functions are called with the device as the thread's current one, but for those that
// free.
class State final : public Gpu {
 public:
  explicit State(int index)
      : index_(index),
        compute_(driver::create_stream()),
        copies_(driver::create_stream()),
        blas_(driver::create_blas(compute_)),
        pool_(driver::create_pool()) {}

  driver::Stream compute() const { return compute_; }
  driver::Blas blas() const { return blas_; }

  const KernelTable& table() override { return kernels; }

  void synchronize() override {
    driver::synchronize(compute_);
    driver::synchronize(copies_);
  }

  std::shared_ptr<void> allocate(std::int64_t bytes, bool travels) override {
    // The pool cuts and joins blocks by itself: there a class would waste up to an eighth.
    const std::size_t size = travels ? class_of(bytes) : at_least_one(bytes);
    void* data = obtain(bytes, [&] { return travels ? arena_.take(size) : take_pool(size); });
    if (travels)
      return {data, [this, size](void* block) { give(arena_, block, size, {compute_, copies_}); }};
    return {data, [this, size](void* block) { give_pool(block, size); }};
  }

  bool travels(const void* data) override { return arena_.holds(data); }

  std::shared_ptr<void> allocate_pinned(std::int64_t bytes) override {
    const std::size_t size = class_of(bytes);
    void* data = obtain(bytes, [&] { return pinned_.take(size); });
    return {data, [this, size](void* block) { give(pinned_, block, size, {copies_}); }};
  }

  void* allocate_scratch(std::size_t bytes) {
    return obtain(static_cast<std::int64_t>(bytes), [&] { return take_pool(bytes); });
  }

  void copy(const void* from, void* to, std::int64_t bytes) override {
    driver::copy_async(to, from, static_cast<std::size_t>(bytes), compute_);
    driver::synchronize(compute_);
  }

  MarkPtr copy_async(const void* from, void* to, std::int64_t bytes, const Mark* after) override {
    if (after != nullptr) driver::make_wait(copies_, event_of(*after));
    driver::copy_async(to, from, static_cast<std::size_t>(bytes), copies_);
    return mark(copies_);
  }

  MarkPtr record() override { return mark(compute_); }
  void make_wait(const Mark& mark) override { driver::make_wait(compute_, event_of(mark)); }
  GpuInfo info() override { return driver::info(); }

 private:
  MarkPtr mark(driver::Stream stream) { return std::make_shared<Recorded>(events_, stream); }

  void* take_pool(std::size_t size) {
    void* data = driver::allocate_async(pool_, size, compute_);
    if (data != nullptr && driver::kPoisons) driver::fill_async(data, kNaN, size, compute_);
    return data;
  }

  // A device that fails here is lost, and its memory with it; the next call says so.
  void give_pool(void* data, std::size_t size) noexcept try {
    driver::set_device(index_);
    if (driver::kPoisons) driver::fill_async(data, kNaN, size, compute_);
    driver::free_async(data, compute_);
  } catch (const Error&) {
  }
  // `users`: the streams whose work may be in flight there. Kernels leave pinned memory alone, and
  // copy() has waited: so a message that is staged does not wait for what is being computed.
  void give(Blocks& blocks, void* data, std::size_t size,
            std::initializer_list<driver::Stream> users) noexcept try {
    driver::set_device(index_);
    Blocks::Marks in_flight;
    for (const driver::Stream stream : users) in_flight.push_back(mark(stream));
    blocks.give(data, size, std::move(in_flight));
  } catch (const Error&) {
  }

  // Tries again without what is kept for later.
  template <class Take>
  void* obtain(std::int64_t bytes, const Take& take) {
    if (void* data = take()) return data;
    synchronize();
    arena_.release_used();
    pinned_.release_used();
    driver::trim(pool_);
    if (void* data = take()) return data;
    const GpuInfo now = driver::info();
    out_of_memory(fmt::format("{} refused {} bytes: {} of its {} are free", name_of(index_), bytes,
                              now.free_bytes, now.total_bytes),
                  memory_ledger::entries());
  }

  int index_;
  driver::Stream compute_;
  driver::Stream copies_;
  driver::Blas blas_;
  driver::Pool pool_;
  Events events_;
  Blocks arena_{driver::allocate, driver::free};
  Blocks pinned_{driver::allocate_pinned, driver::free_pinned};
};

void require(int index) {
  const int devices = driver::device_count();
  if (index >= 0 && index < devices) return;
  if (devices == 0)
    throw DeviceError({.problem = driver::why_none(),
                       .operation = "require_device",
                       .found = name_of(index),
                       .hint = driver::kHint});
  throw DeviceError({.problem = "there is no such device",
                     .operation = "require_device",
                     .found = name_of(index),
                     .expected = fmt::format("an index below {}", devices),
                     .hint = driver::kHint});
}

// Of the device that this thread uses.
thread_local State* t_current = nullptr;

// Never destroyed: the driver may be gone when static destructors run.
State& use(int index) {
  require(index);
  driver::set_device(index);
  static auto* states = new std::map<int, State>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  t_current = &states->try_emplace(index, index).first->second;
  return *t_current;
}

State& current() {
  return t_current != nullptr ? *t_current : use(driver::current_device());
}

}  // namespace

int count() {
  return driver::device_count();
}
std::string identity(int index) {
  return driver::identity(index);
}
Gpu& gpu(int index) {
  return use(index);
}
std::string toolkit() {
  return driver::toolkit();
}
driver::Stream stream() {
  return current().compute();
}
driver::Blas blas() {
  return current().blas();
}
void* allocate_scratch(std::size_t bytes) {
  return current().allocate_scratch(bytes);
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE

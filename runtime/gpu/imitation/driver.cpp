// SPDX-License-Identifier: MIT
// A GPU that is as late as it may be: work waits in its stream until the host waits for it, so that
// whoever forgets to wait sees what was there before, in every run.
#include "tessera/runtime/gpu/imitation/driver.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/imitation/memory.hpp"
#include "tessera/runtime/gpu/imitation/product.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera::gpu_imitation::driver {

// Whether a stream has come to a point.
struct Signal {
  Stream stream;
  bool reached = false;
  bool asked = false;
};
struct StreamObject {
  int device;
  std::deque<std::function<void()>> work;
};
struct EventObject {
  int device;
  std::shared_ptr<Signal> signal;  // of the last record(); null before
};
struct BlasObject {
  Stream stream;
};

const char* const kName = "imitation";
const char* const kHint = "see TESSERA_IMITATION_DEVICES";
const bool kPoisons = true;

namespace {

thread_local int t_device = 0;

// Held by every call that touches streams. Work runs under it and makes no such call.
std::mutex& streams() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

void run_next(StreamObject& stream) {
  const auto work = std::move(stream.work.front());
  stream.work.pop_front();
  work();
}

void run_until(const Signal& signal) {
  while (!signal.reached) run_next(*signal.stream);
}

// Both kinds of memory together are one device's.
bool has_room(std::size_t bytes) {
  const std::size_t used = pool_memory(t_device).used() + plain_memory(t_device).used();
  return static_cast<std::int64_t>(used + bytes) <= memory_limit();
}

void enqueue(Stream stream, std::function<void()> work) {
  std::lock_guard lock(streams());
  stream->work.push_back(std::move(work));
}

// As CUDA: kernels go to streams of the thread's device, events to streams of their own. Copies and
// waits may go to any.
void check_device(const char* call, Stream stream, int device) {
  if (stream->device == device) return;
  throw DeviceError({.problem = "the stream belongs to another device",
                     .operation = call,
                     .found = fmt::format("a stream of {}:{}", kName, stream->device),
                     .expected = fmt::format("one of {}:{}", kName, device)});
}

}  // namespace

void launch(Stream stream, std::function<void()> kernel) {
  check_device("launch", stream, t_device);
  enqueue(stream, std::move(kernel));
}

std::string toolkit() {
  return "imitation";
}

int device_count() {
  return static_cast<int>(number_from_environment("TESSERA_IMITATION_DEVICES", 64, 0, 9999));
}
std::string why_none() {
  return "there is no imitation of a GPU";
}
void set_device(int index) {
  memory_limit();  // both read variables, wrong ones of which are told now and not amid the work
  pool_memory(index);
  t_device = index;
}
int current_device() {
  return t_device;
}

std::string identity(int index) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("imitation-{}-{}", host, index);
}

GpuInfo info() {
  const auto used =
      static_cast<std::int64_t>(pool_memory(t_device).used() + plain_memory(t_device).used());
  return {.name = "imitation of a GPU",
          .architecture = "host",
          .identity = identity(t_device),
          .driver = "none",
          .runtime = "none",
          .blas = "loops",
          .total_bytes = memory_limit(),
          .free_bytes = memory_limit() - used,
          .workspace_bytes = 0};
}

void* allocate(std::size_t bytes) {
  return has_room(bytes) ? plain_memory(t_device).take(bytes) : nullptr;
}
void free(void* data) noexcept {
  plain_memory(t_device).give(data);
}
Pool create_pool() {
  return nullptr;
}
// Blocks go and come in the order of the calls, which is the order of the work of the one stream
// that uses them.
void* allocate_async(Pool, std::size_t bytes, Stream) {
  return has_room(bytes) ? pool_memory(t_device).take(bytes) : nullptr;
}
void free_async(void* data, Stream) noexcept {
  pool_memory(t_device).give(data);
}
void trim(Pool) {}
void* allocate_pinned(std::size_t bytes) {
  return std::aligned_alloc(512, (bytes + 511) / 512 * 512);
}
void free_pinned(void* data) noexcept {
  std::free(data);
}

void copy_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
void fill_async(void* to, int byte, std::size_t bytes, Stream stream) {
  enqueue(stream, [=] { std::memset(to, byte, bytes); });
}
void fill(void* to, int byte, std::size_t bytes) {
  const Opened opened;
  std::memset(to, byte, bytes);
}

Stream create_stream() {
  return new StreamObject{t_device, {}};
}
void synchronize(Stream stream) {
  std::lock_guard lock(streams());
  const Opened opened;
  while (!stream->work.empty()) run_next(*stream);
}

Event create_event() {
  return new EventObject{t_device, nullptr};
}
void record(Event event, Stream stream) {
  check_device("record", stream, event->device);
  event->signal = std::make_shared<Signal>(Signal{stream});
  enqueue(stream, [signal = event->signal] { signal->reached = true; });
}
// "Not yet" once, however long ago the work was started; then it is done.
bool done(Event event) {
  std::lock_guard lock(streams());
  if (event->signal == nullptr || event->signal->reached) return true;
  if (!std::exchange(event->signal->asked, true)) return false;
  const Opened opened;
  run_until(*event->signal);
  return true;
}
void wait(Event event) {
  std::lock_guard lock(streams());
  const Opened opened;
  if (event->signal != nullptr) run_until(*event->signal);
}
void make_wait(Stream stream, Event event) {
  enqueue(stream, [signal = event->signal] {
    if (signal != nullptr) run_until(*signal);
  });
}

Blas create_blas(Stream stream) {
  return new BlasObject{stream};
}
void gemm(Blas blas, const Gemm& product) {
  check_product(product);
  launch(blas->stream, [product] { multiply(product); });
}

}  // namespace tessera::gpu_imitation::driver

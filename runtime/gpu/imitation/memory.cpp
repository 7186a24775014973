// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/imitation/memory.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <memory>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera::gpu_imitation {
namespace {

constexpr std::size_t kReserved = std::size_t{16} << 30;
constexpr std::size_t kAlignment = 512;

std::int64_t initial_memory() {
  constexpr std::int64_t most = kReserved >> 20;
  return number_from_environment("TESSERA_IMITATION_MEMORY_MIB", most, 1, most) << 20;
}

std::atomic<std::int64_t>& limit() {
  static std::atomic<std::int64_t> bytes{initial_memory()};
  return bytes;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Device {
  Memory pool{true};
  Memory plain{text_from_environment("TESSERA_CUDA_AWARE") != "on"};
};
struct Devices {
  std::mutex mutex;
  std::map<int, Device> all;
  bool guarded = flag_from_environment("TESSERA_IMITATION_GUARD");
  int opened = 0;
  void protect(bool closed) {
    for (auto& [index, device] : all) {
      device.pool.protect(closed);
      device.plain.protect(closed);
    }
  }
};
Devices& devices() {
  static auto* instance = new Devices;
  return *instance;
}
Device& device_at(int index) {
  std::lock_guard lock(devices().mutex);
  const auto [entry, fresh] = devices().all.try_emplace(index);
  if (fresh && devices().guarded && devices().opened == 0) {
    entry->second.pool.protect(true);
    entry->second.plain.protect(true);
  }
  return entry->second;
}

}  // namespace

Memory::Memory(bool guardable)
    : guardable_(guardable),
      base_(static_cast<char*>(::mmap(nullptr, kReserved, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
  if (base_ == MAP_FAILED)
    throw DeviceError({.problem = "the system refused the addresses of an imitated device",
                       .operation = "mmap",
                       .hint = "see ulimit -v"});
}

// The first gap that is large enough.
std::size_t Memory::find(std::size_t bytes) const {
  std::size_t offset = 0;
  for (const auto& [begin, length] : live_) {
    if (begin - offset >= bytes) return offset;
    offset = begin + length;
  }
  return offset;
}

void* Memory::take(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  bytes = round_up(bytes, kAlignment);
  const std::size_t offset = find(bytes);
  if (offset + bytes > kReserved) return nullptr;
  live_[offset] = bytes;
  used_ += bytes;
  return base_ + offset;
}

void Memory::give(void* data) {
  std::lock_guard lock(mutex_);
  const auto block = live_.find(static_cast<std::size_t>(static_cast<char*>(data) - base_));
  used_ -= block->second;
  live_.erase(block);
}

std::size_t Memory::used() {
  std::lock_guard lock(mutex_);
  return used_;
}

void Memory::protect(bool closed) {
  if (!guardable_) return;
  ::mprotect(base_, kReserved, closed ? PROT_NONE : PROT_READ | PROT_WRITE);
}

Memory& pool_memory(int device) {
  return device_at(device).pool;
}
Memory& plain_memory(int device) {
  return device_at(device).plain;
}
std::int64_t memory_limit() {
  return limit();
}
void set_memory(std::int64_t bytes) {
  limit() = bytes;
}
void set_guard(bool guarded) {
  std::lock_guard lock(devices().mutex);
  devices().guarded = guarded;
  devices().protect(guarded);
}

Opened::Opened() {
  Devices& d = devices();
  std::lock_guard lock(d.mutex);
  if (d.opened++ == 0 && d.guarded) d.protect(false);
}
Opened::~Opened() {
  Devices& d = devices();
  std::lock_guard lock(d.mutex);
  if (--d.opened == 0 && d.guarded) d.protect(true);
}

}  // namespace tessera::gpu_imitation

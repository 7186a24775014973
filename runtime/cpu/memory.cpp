// SPDX-License-Identifier: MIT
#include "tessera/runtime/cpu/memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "tessera/runtime/out_of_memory.hpp"

namespace tessera::cpu {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallestCached = std::size_t{1} << 20;
constexpr std::size_t kAlwaysCached = std::size_t{256} << 20;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kCaching = false;  // AddressSanitizer watches malloc's blocks only
#else
constexpr bool kCaching = true;
#endif

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Eight classes for each doubling: at most an eighth is wasted, and sizes that are nearly the same
// share their blocks.
std::size_t class_of(std::size_t bytes) {
  return round_up(bytes, std::bit_floor(bytes) / 8);
}

// Blocks of at least kSmallestCached, straight from the system.
void* map(std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (bytes >= 2 * kHugePage) ::madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

class Cache {
 public:
  void* take(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      if (block->bytes != bytes) continue;
      void* data = block->data;
      cached_ -= bytes;
      blocks_.erase(std::next(block).base());
      count(bytes);
      return data;
    }
    return nullptr;
  }

  void give(void* data, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    live_ -= bytes;
    cached_ += bytes;
    blocks_.push_back({data, bytes});
    shrink(std::max(kAlwaysCached, peak_ / 4));
  }

  // A fresh block, counted here as well; null if the system refuses.
  void* map_block(std::size_t bytes) {
    void* data = map(bytes);
    if (data == nullptr) return nullptr;
    std::lock_guard lock(mutex_);
    count(bytes);
    return data;
  }

  void release() {
    std::lock_guard lock(mutex_);
    shrink(0);
  }

  std::size_t cached() {
    std::lock_guard lock(mutex_);
    return cached_;
  }

 private:
  struct Block {
    void* data;
    std::size_t bytes;
  };

  void count(std::size_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }

  void shrink(std::size_t limit) {
    auto block = blocks_.begin();
    for (; cached_ > limit; ++block) {
      ::munmap(block->data, block->bytes);
      cached_ -= block->bytes;
    }
    blocks_.erase(blocks_.begin(), block);
  }

  std::mutex mutex_;
  std::vector<Block> blocks_;  // the longest unused first
  std::size_t cached_ = 0;
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
};

// Never destroyed: tensors of static lifetime may be freed last.
Cache& cache() {
  static Cache* instance = new Cache;
  return *instance;
}

void* allocate_cached(std::size_t bytes) {
  if (void* data = cache().take(bytes)) return data;
  if (void* data = cache().map_block(bytes)) return data;
  cache().release();
  return cache().map_block(bytes);
}

[[noreturn]] void refused(std::int64_t bytes) {
  out_of_memory(fmt::format("the system refused {} bytes", bytes), memory_ledger::entries());
}

}  // namespace

std::shared_ptr<void> allocate(std::int64_t bytes) {
  if (bytes > std::int64_t{1} << 60) refused(bytes);
  const auto wanted = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  const bool cached = kCaching && wanted >= kSmallestCached;
  const std::size_t size = cached ? class_of(wanted) : round_up(wanted, kAlignment);
  void* data = cached ? allocate_cached(size) : std::aligned_alloc(kAlignment, size);
  if (data == nullptr) refused(bytes);
#ifdef TESSERA_ASSERTIONS
  std::memset(data, 0xff, wanted);  // NaN in every floating type
#endif
  if (cached) return {data, [size](void* block) { cache().give(block, size); }};
  return {data, [](void* block) { std::free(block); }};
}

std::int64_t cached_bytes() {
  return static_cast<std::int64_t>(cache().cached());
}

void release_cache() {
  cache().release();
}

}  // namespace tessera::cpu

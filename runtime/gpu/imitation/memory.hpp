// SPDX-License-Identifier: MIT
// The memory of an imitated device: one range of addresses, blocks of which are in use. Also how
// tests make it small, and how they catch a host that reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace tessera::gpu_imitation {

// At most `bytes` on each device, TESSERA_IMITATION_MEMORY_MIB at first, else 16 GiB.
void set_memory(std::int64_t bytes);

// While guarded, memory can be touched by the device's work only; a host that does dies of a
// segmentation fault, as it would with a GPU. TESSERA_IMITATION_GUARD=1 at first, else off.
void set_guard(bool guarded);

class Memory {
 public:
  explicit Memory(bool guardable);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* take(std::size_t bytes);  // null if there is no room
  void give(void* data);
  std::size_t used();
  void protect(bool closed);

 private:
  std::size_t find(std::size_t bytes) const;

  std::mutex mutex_;
  bool guardable_;
  char* base_;
  std::size_t used_ = 0;
  std::map<std::size_t, std::size_t> live_;  // offset to bytes
};

// Of the device: what allocate_async() hands out, and what allocate() does. The latter stays open
// with TESSERA_CUDA_AWARE=on, for an MPI that reads and writes it.
Memory& pool_memory(int device);
Memory& plain_memory(int device);
std::int64_t memory_limit();

// The devices' memory is open while one of these lives.
class Opened {
 public:
  Opened();
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

}  // namespace tessera::gpu_imitation

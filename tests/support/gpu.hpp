// SPDX-License-Identifier: MIT
// The imitation of a GPU, and the blocks of its kernels.
#pragma once

#include <vector>

#include "tessera/runtime/device.hpp"
#include "tessera/runtime/gpu/device.hpp"

namespace tessera {

namespace gpu_imitation {
int& block_threads();  // gpu/launch.hpp
}

inline constexpr Device imitation{DeviceKind::imitation, 0};
inline const std::vector<int> block_sizes{32, 64, 96, 256, 1024};

// Forces the threads of a block while it lives.
class BlockThreads {
 public:
  explicit BlockThreads(int threads) : before_(gpu_imitation::block_threads()) {
    gpu_imitation::block_threads() = threads;
  }
  ~BlockThreads() { gpu_imitation::block_threads() = before_; }
  BlockThreads(const BlockThreads&) = delete;
  BlockThreads& operator=(const BlockThreads&) = delete;

 private:
  int before_;
};

}  // namespace tessera

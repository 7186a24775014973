// SPDX-License-Identifier: MIT
// The imitation of a GPU, and the blocks of its kernels.
#pragma once

#include <vector>

#include "tessera/runtime/device.hpp"
#include "tessera/runtime/gpu/device.hpp"

namespace tessera {

// gpu/launch.hpp
namespace gpu_cuda {
int& block_threads();
}
namespace gpu_imitation {
int& block_threads();
}

inline constexpr Device imitation{DeviceKind::imitation, 0};
inline const std::vector<int> block_sizes{32, 64, 96, 256, 1024};

// Forces the threads of a block while it lives.
class BlockThreads {
 public:
  explicit BlockThreads(int threads, Device device = imitation)
      : forced_(device == imitation ? gpu_imitation::block_threads() : gpu_cuda::block_threads()),
        before_(forced_) {
    forced_ = threads;
  }
  ~BlockThreads() { forced_ = before_; }
  BlockThreads(const BlockThreads&) = delete;
  BlockThreads& operator=(const BlockThreads&) = delete;

 private:
  int& forced_;
  int before_;
};

}  // namespace tessera

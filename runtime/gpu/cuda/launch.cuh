// SPDX-License-Identifier: MIT
// What all CUDA sources share: launches of kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/runtime/gpu/cuda/check.cuh"
#include "tessera/runtime/gpu/kernels.hpp"
#include "tessera/runtime/kernels/scalar.hpp"

namespace tessera::gpu_cuda {

inline constexpr int kThreads = 256;

// Blocks of a grid-stride kernel over `count` items, `per_block` of which a block does at a time.
inline unsigned grid(std::int64_t count, std::int64_t per_block = kThreads) {
  constexpr std::int64_t most = 16384;
  return static_cast<unsigned>(
      std::max<std::int64_t>(1, std::min(most, (count + per_block - 1) / per_block)));
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), unsigned blocks, dim3 threads,
            Arguments... arguments) {
  kernel<<<blocks, threads, 0, reinterpret_cast<cudaStream_t>(stream())>>>(arguments...);
  check(cudaGetLastError(), name);
}

}  // namespace tessera::gpu_cuda

// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/launch.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {

int& block_threads() {
  static int threads = 256;
  return threads;
}

Grid grid_for(std::int64_t count, std::int64_t width) {
  constexpr std::int64_t most = 16384;
  const std::int64_t threads = block_threads();
  const std::int64_t per_block = threads / width;
  const std::int64_t blocks = std::min(most, (count + per_block - 1) / per_block);
  return {static_cast<unsigned>(blocks), static_cast<unsigned>(threads)};
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE

// SPDX-License-Identifier: MIT
// In the place of gpu_cuda in a build without CUDA.
#include <fmt/format.h>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/device.hpp"

namespace tessera::gpu_cuda {

int count() {
  return 0;
}
std::string identity(int index) {
  return gpu(index).info().identity;
}
Gpu& gpu(int index) {
  throw DeviceError({.problem = "this library was built without CUDA",
                     .operation = "require_device",
                     .found = fmt::format("cuda:{}", index),
                     .expected = "cpu",
                     .hint = "configure with -DTESSERA_CUDA=ON"});
}
int& block_threads() {  // of no kernel
  static int threads = 0;
  return threads;
}
std::string toolkit() {
  return "";
}

}  // namespace tessera::gpu_cuda

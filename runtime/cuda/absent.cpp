// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "tessera/runtime/cuda/device.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::cuda {
namespace {

[[noreturn]] void refuse(int index) {
  throw DeviceError({.problem = "this library was built without CUDA",
                     .operation = "require_device",
                     .found = fmt::format("cuda:{}", index),
                     .expected = "cpu",
                     .hint = "configure with -DTESSERA_CUDA=ON"});
}

}  // namespace

std::string toolkit() {
  return "";
}
void require(int index) {
  refuse(index);
}
const KernelTable& table(int index) {
  refuse(index);
}
void synchronize(int index) {
  refuse(index);
}
std::shared_ptr<void> allocate(int index, std::int64_t) {
  refuse(index);
}
void copy(const void*, int from_index, void*, int to_index, std::int64_t) {
  refuse(from_index < 0 ? to_index : from_index);
}

}  // namespace tessera::cuda

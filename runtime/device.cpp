// SPDX-License-Identifier: MIT
#include "tessera/runtime/device.hpp"

#include <fmt/format.h>

#include <charconv>

#include "tessera/runtime/cpu/memory.hpp"
#include "tessera/runtime/cuda/device.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/meta/device.hpp"

namespace tessera {

std::string name_of(Device device) {
  if (device.kind == DeviceKind::cuda) return fmt::format("cuda:{}", device.index);
  return device.kind == DeviceKind::cpu ? "cpu" : "meta";
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return cpu_device;
  if (text == "cuda") return {DeviceKind::cuda, 0};
  constexpr std::string_view prefix = "cuda:";
  if (text.substr(0, prefix.size()) == prefix) {
    int index = -1;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data() + prefix.size(), end, index);
    if (result.ec == std::errc() && result.ptr == end && index >= 0)
      return {DeviceKind::cuda, index};
  }
  throw UsageError({.problem = "unknown device",
                    .operation = "parse_device",
                    .found = fmt::format("'{}'", text),
                    .expected = "cpu, cuda or cuda:INDEX"});
}

void require_device(Device device) {
  if (device.kind == DeviceKind::cuda)
    cuda::require(device.index);
  else if (device.index != 0)
    throw DeviceError({.problem = fmt::format("there is one {} device only", name_of(device)),
                       .operation = "require_device",
                       .found = fmt::format("index {}", device.index),
                       .expected = "index 0"});
}

void synchronize(Device device) {
  if (device.kind == DeviceKind::cuda) cuda::synchronize(device.index);
}

const KernelTable& kernel_table(Device device) {
  switch (device.kind) {
    case DeviceKind::cuda:
      return cuda::table(device.index);
    case DeviceKind::meta:
      return meta::table;
    default:
      return *cpu_variant().table;
  }
}

namespace detail {

std::shared_ptr<void> allocate(Device device, std::int64_t bytes) {
  require_device(device);
  switch (device.kind) {
    case DeviceKind::cuda:
      return cuda::allocate(device.index, bytes);
    case DeviceKind::meta:
      return meta::allocate(bytes);
    default:
      return cpu::allocate(bytes);
  }
}

}  // namespace detail
}  // namespace tessera

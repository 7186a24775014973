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
  switch (device.kind) {
    case DeviceKind::cuda:
      return fmt::format("cuda:{}", device.index);
    case DeviceKind::imitation:
      return fmt::format("imitation:{}", device.index);
    case DeviceKind::meta:
      return "meta";
    default:
      return "cpu";
  }
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return cpu_device;
  for (const DeviceKind kind : {DeviceKind::cuda, DeviceKind::imitation}) {
    const std::string prefix = name_of(Device{kind, 0});  // "cuda:0"
    const auto name = std::string_view(prefix).substr(0, prefix.size() - 2);
    if (text == name) return {kind, 0};
    if (text.substr(0, name.size() + 1) != std::string(name) + ':') continue;
    int index = -1;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data() + name.size() + 1, end, index);
    if (result.ec == std::errc() && result.ptr == end && index >= 0) return {kind, index};
  }
  throw UsageError({.problem = "unknown device",
                    .operation = "parse_device",
                    .found = fmt::format("'{}'", text),
                    .expected = "cpu, cuda, cuda:INDEX or imitation"});
}

void require_device(Device device) {
  if (device.kind == DeviceKind::cuda)
    cuda::require(device.index);
  else if (device.kind == DeviceKind::imitation)
    throw DeviceError({.problem = "the imitation of a GPU is not built in",
                       .operation = "require_device",
                       .found = name_of(device),
                       .expected = "cpu or cuda"});
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

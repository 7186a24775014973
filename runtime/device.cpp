// SPDX-License-Identifier: MIT
#include "tessera/runtime/device.hpp"

#include <fmt/format.h>

#include <atomic>
#include <charconv>

#include "tessera/runtime/cpu/memory.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/device.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/meta/device.hpp"

namespace tessera {
namespace {

std::atomic<int>& default_gpu() {
  static std::atomic<int> index{0};
  return index;
}

}  // namespace

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
    if (text == name) return {kind, default_gpu()};
    if (text.substr(0, name.size() + 1) != std::string(name) + ':') continue;
    int index = -1;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data() + name.size() + 1, end, index);
    if (result.ec == std::errc() && result.ptr == end && index >= 0) return {kind, index};
  }
  throw UsageError({.problem = "unknown device",
                    .operation = "parse_device",
                    .found = fmt::format("'{}'", text),
                    .expected = "cpu, cuda, cuda:INDEX, imitation or imitation:INDEX"});
}

void set_default_gpu(int index) {
  default_gpu() = index;
}

Gpu& gpu(Device device) {
  return device.kind == DeviceKind::cuda ? gpu_cuda::gpu(device.index)
                                         : gpu_imitation::gpu(device.index);
}

void require_device(Device device) {
  if (is_gpu(device))
    gpu(device);
  else if (device.index != 0)
    throw DeviceError({.problem = fmt::format("there is one {} device only", name_of(device)),
                       .operation = "require_device",
                       .found = fmt::format("index {}", device.index),
                       .expected = "index 0"});
}

void synchronize(Device device) {
  if (is_gpu(device)) gpu(device).synchronize();
}

const KernelTable& kernel_table(Device device) {
  switch (device.kind) {
    case DeviceKind::cuda:
    case DeviceKind::imitation:
      return gpu(device).table();
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
    case DeviceKind::imitation:
      return gpu(device).allocate(bytes, current_purpose() == Purpose::communication);
    case DeviceKind::meta:
      return meta::allocate(bytes);
    default:
      return cpu::allocate(bytes);
  }
}

}  // namespace detail
}  // namespace tessera

// SPDX-License-Identifier: MIT
// Where the bytes of a tensor are. Devices are chosen at run time; whether CUDA exists at all is
// chosen when the library is built.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera {

// meta: shapes only. Operations check their operands and do nothing, the memory ledger counts as if
// there were memory, and values cannot be read. For dry runs of ranks that are not there.
// imitation: a GPU made of loops on the host, which runs the GPU's kernels, streams and memory
// pools where there is no GPU. For tests: it is slow.
enum class DeviceKind : std::uint8_t { cpu, cuda, meta, imitation };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};
inline constexpr Device cpu_device{};
inline constexpr Device meta_device{DeviceKind::meta, 0};

// Memory and streams of its own: cuda or its imitation.
constexpr bool is_gpu(Device device) {
  return device.kind == DeviceKind::cuda || device.kind == DeviceKind::imitation;
}

std::string name_of(Device device);     // "cpu", "cuda:0", "imitation:0", "meta"
Device parse_device(std::string_view);  // "cpu", "cuda", "imitation:1"; UsageError otherwise
// Which GPU "cuda" and "imitation" mean without an index: the first one, until the mesh has given
// this rank one.
void set_default_gpu(int index);

// Throws DeviceError, which says what is missing, unless tensors can be made there.
void require_device(Device device);

// Waits until all work that was started on the device is done (CPU: nothing to do).
void synchronize(Device device);

namespace detail {
// Uninitialised memory; OutOfMemoryError names the bytes. Aligned to 64 bytes at least.
std::shared_ptr<void> allocate(Device device, std::int64_t bytes);
}  // namespace detail

}  // namespace tessera

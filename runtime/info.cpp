// SPDX-License-Identifier: MIT
#include "tessera/runtime/info.hpp"

#include <fmt/format.h>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/gpu/device.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/version.h"

namespace tessera {

std::string version() {
  return TESSERA_VERSION;
}

std::string compiler() {
#if defined(__clang__)
  return fmt::format("Clang {}", __clang_version__);
#elif defined(__GNUC__)
  return fmt::format("GCC {}", __VERSION__);
#else
  return "unknown";
#endif
}

bool built_with_cuda() {
  return !cuda_version().empty();
}
std::string cuda_version() {
  return gpu_cuda::toolkit();
}

int gpu_count(DeviceKind kind) {
  if (kind == DeviceKind::cuda) return gpu_cuda::count();
  return kind == DeviceKind::imitation ? gpu_imitation::count() : 0;
}
std::vector<std::string> gpu_identities(DeviceKind kind) {
  std::vector<std::string> all;
  for (int index = 0; index < gpu_count(kind); ++index)
    all.push_back(kind == DeviceKind::cuda ? gpu_cuda::identity(index)
                                           : gpu_imitation::identity(index));
  return all;
}
GpuInfo gpu_info(Device device) {
  if (!is_gpu(device))
    throw DeviceError(
        {.problem = "the device is no GPU", .operation = "gpu_info", .found = name_of(device)});
  return gpu(device).info();
}
std::vector<GpuInfo> cuda_devices() {
  std::vector<GpuInfo> all;
  for (int index = 0; index < gpu_cuda::count(); ++index)
    all.push_back(gpu_info({DeviceKind::cuda, index}));
  return all;
}
std::string describe(const GpuInfo& info) {
  return fmt::format("{} ({}, {:.1f} GiB), driver {}, runtime {}, BLAS {} with {} MiB of workspace",
                     info.name, info.architecture, static_cast<double>(info.total_bytes) / 0x1p30,
                     info.driver, info.runtime, info.blas, info.workspace_bytes >> 20);
}

std::string instruction_set() {
  return cpu_variant().name;
}
std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const CpuVariant& variant : cpu_variants()) names.push_back(variant.name);
  return names;
}

}  // namespace tessera

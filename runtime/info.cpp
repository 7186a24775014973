// SPDX-License-Identifier: MIT
#include "tessera/runtime/info.hpp"

#include <fmt/format.h>

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
GpuInfo gpu_info(Device device) {
  return gpu(device).info();
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

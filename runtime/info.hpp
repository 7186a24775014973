// SPDX-License-Identifier: MIT
// What this build and this machine are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/runtime/device.hpp"

namespace tessera {

std::string version();  // "0.2.0"
std::string compiler();
bool built_with_cuda();
std::string cuda_version();  // toolkit of the build, "" without CUDA

int gpu_count(DeviceKind kind);  // that this process sees
struct GpuInfo {
  std::string name;                   // "NVIDIA H200"
  std::string architecture;           // "sm_90"
  std::string identity;               // of the device, the same for every process that sees it
  std::string driver, runtime, blas;  // versions
  std::int64_t total_bytes, free_bytes;
  std::int64_t workspace_bytes;  // of the runtime's matrix products, outside the memory ledger
};
GpuInfo gpu_info(Device device);            // DeviceError if it is not there
std::vector<GpuInfo> cuda_devices();        // all that this process sees
std::string describe(const GpuInfo& info);  // "NVIDIA H200 (sm_90, 139.7 GiB), driver 13.0, ..."
// The GPUs that this process sees, by index, without making use of any.
std::vector<std::string> gpu_identities(DeviceKind kind);

// Instruction sets: kernels are compiled for x86-64 levels v2, v3, v4 and chosen when first used.
// TESSERA_ISA=v2|v3|v4 forces one; UsageError if the processor lacks it.
std::string instruction_set();                // the one in use: "x86-64-v3"
std::vector<std::string> instruction_sets();  // built in

}  // namespace tessera

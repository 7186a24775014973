// SPDX-License-Identifier: MIT
// Which table serves a device.
#pragma once

#include <string>
#include <vector>

#include "tessera/runtime/device.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera {

// The table of the device; for a CPU that of the best instruction set, chosen at the first call.
// Throws DeviceError (no such device) or UsageError (TESSERA_ISA).
const KernelTable& kernel_table(Device device);

// The CPU's tables, from the oldest instruction set to the newest.
struct CpuVariant {
  std::string name;        // "x86-64-v3"
  std::string short_name;  // "v3"
  bool supported;          // by this processor
  const KernelTable* table;
};
const std::vector<CpuVariant>& cpu_variants();
const CpuVariant& cpu_variant();  // the one in use
// As TESSERA_ISA does; for tests.
void force_cpu_variant(const std::string& short_name);

}  // namespace tessera

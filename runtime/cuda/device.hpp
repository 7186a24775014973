// SPDX-License-Identifier: MIT
// What the CUDA device offers to the rest of runtime/. Plain C++: no CUDA header is needed here.
// Without CUDA in the build, cuda/absent.cpp answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/runtime/kernels/table.hpp"

namespace tessera::cuda {

std::string toolkit();  // "13.0", "" if not built in
// Throws DeviceError: not built in, no driver, no such device.
void require(int index);
const KernelTable& table(int index);  // and makes it the thread's current device

void synchronize(int index);
std::shared_ptr<void> allocate(int index, std::int64_t bytes);

// Copies `bytes` between the host and a device, or between two devices; done on return. The index
// of a side on the host is -1.
void copy(const void* from, int from_index, void* to, int to_index, std::int64_t bytes);

}  // namespace tessera::cuda

// SPDX-License-Identifier: MIT
// The device that has shapes but no memory.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/runtime/kernels/table.hpp"

namespace tessera::meta {

extern const KernelTable table;  // operations that do nothing; reductions throw DeviceError
// Addresses that nothing else has, so that tensors do not seem to overlap; never read or written.
std::shared_ptr<void> allocate(std::int64_t bytes);

}  // namespace tessera::meta

// SPDX-License-Identifier: MIT
// The device that has shapes but no memory.
#pragma once

#include <memory>

#include "tessera/runtime/kernels/table.hpp"

namespace tessera::meta {

extern const KernelTable table;  // operations that do nothing; reductions throw DeviceError
std::shared_ptr<void> allocate();

}  // namespace tessera::meta

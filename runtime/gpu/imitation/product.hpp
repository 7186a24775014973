// SPDX-License-Identifier: MIT
#pragma once

#include "tessera/runtime/gpu/driver.hpp"

namespace tessera::gpu_imitation {

// Plain loops; DeviceError for a leading dimension that is too small, as cuBLAS has it.
void check_product(const driver::Gemm& product);
void multiply(const driver::Gemm& product);

}  // namespace tessera::gpu_imitation

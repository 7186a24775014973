// SPDX-License-Identifier: MIT
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

namespace tessera::gpu_cuda {

// Throws DeviceError, or OutOfMemoryError, with the name of the call, the code that it returned and
// the device.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);

}  // namespace tessera::gpu_cuda

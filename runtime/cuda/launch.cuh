// SPDX-License-Identifier: MIT
// What all CUDA sources share: checked calls, the current device's stream, launches, scratch
// memory.
#pragma once

#define TESSERA_KERNELS_NAMESPACE kernels_cuda

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "tessera/runtime/kernels/scalar.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::cuda {

// Throws DeviceError with the name of the call and the code that it returned.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);

// Of the thread's current device. All of a device's work is on its one stream.
cudaStream_t stream();
cublasHandle_t cublas();

void elementwise(const ElementwiseArgs& args, Range elements);
void transpose(const ElementwiseArgs& args, Range blocks);
Reduced reduce(const ReduceArgs& args, Range elements);
void gemm(const GemmArgs& args, Range blocks);
void layer_norm(const LayerNormArgs& args, Range rows);
void layer_norm_backward(const LayerNormBackwardArgs& args, Range rows);
void gate(const GateArgs& args, Range blocks);
void sum_rows(const SumRowsArgs& args, Range rows);
void fold(const FoldArgs& args, Range elements);
void gather_rows(const IndexedRowsArgs& args, Range rows);
void scatter_add_rows(const IndexedRowsArgs& args, Range rows);
void softmax_tile(const SoftmaxArgs& args, Range rows);
void softmax_tile_backward(const SoftmaxArgs& args, Range queries);

inline constexpr int kThreads = 256;

// Blocks of a grid-stride kernel over `count` items, `per_block` of which a block does at a time.
inline unsigned grid(std::int64_t count, std::int64_t per_block = kThreads) {
  constexpr std::int64_t most = 16384;
  return static_cast<unsigned>(
      std::max<std::int64_t>(1, std::min(most, (count + per_block - 1) / per_block)));
}

template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), unsigned blocks, dim3 threads,
            Arguments... arguments) {
  kernel<<<blocks, threads, 0, stream()>>>(arguments...);
  check(cudaGetLastError(), name);
}

template <class T>
class Scratch {  // stream-ordered memory that is freed at the end of the scope
 public:
  explicit Scratch(std::int64_t count) {
    check(cudaMallocAsync(&data_, static_cast<std::size_t>(count) * sizeof(T), stream()),
          "cudaMallocAsync");
  }
  ~Scratch() { cudaFreeAsync(data_, stream()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return static_cast<T*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace tessera::cuda

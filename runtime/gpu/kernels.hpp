// SPDX-License-Identifier: MIT
// The kernels of a GPU, and where they run.
#pragma once

#include "tessera/runtime/gpu/driver.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {

// The compute stream of the thread's current device.
driver::Stream stream();
driver::Blas blas();

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

// Stream-ordered memory that is freed at the end of the scope.
void* allocate_scratch(std::size_t bytes);
template <class T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count)
      : data_(static_cast<T*>(allocate_scratch(static_cast<std::size_t>(count) * sizeof(T)))) {}
  ~Scratch() { driver::free_async(data_, stream()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }

 private:
  T* data_;
};

}  // namespace tessera::TESSERA_GPU_NAMESPACE

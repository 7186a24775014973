// SPDX-License-Identifier: MIT
// The CPU's kernels. The sources that include this are compiled once per instruction set, each time
// in another namespace. They use no threads, allocate nothing (but for Eigen's packing buffers) and
// instantiate no template of the standard library, which the linker could merge with others.
#pragma once

#include "tessera/runtime/kernels/scalar.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

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

extern const KernelTable table;

template <class T>
T* pointer(void* data) {
  return static_cast<T*>(data);
}
template <class T>
const T* pointer(const void* data) {
  return static_cast<const T*>(data);
}

inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

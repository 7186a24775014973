// SPDX-License-Identifier: MIT
// The functions of a kernel table, in the namespace of the instruction set or kind of GPU that the
// sources are compiled for.
#pragma once

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

constexpr KernelTable table_named(const char* name) {
  return {name,
          elementwise,
          transpose,
          reduce,
          gemm,
          layer_norm,
          layer_norm_backward,
          gate,
          sum_rows,
          fold,
          gather_rows,
          scatter_add_rows,
          softmax_tile,
          softmax_tile_backward};
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

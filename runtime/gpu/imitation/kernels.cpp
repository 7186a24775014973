// SPDX-License-Identifier: MIT
// Kernels of the CPU, started as those of a GPU are.
#include "tessera/runtime/gpu/kernels.hpp"

#include "tessera/runtime/gpu/imitation/driver.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"

namespace tessera::gpu_imitation {
namespace {

template <class Args>
void start(void (*kernel)(const Args&, Range), const Args& args, Range range) {
  driver::enqueue(stream(), [=] { kernel(args, range); });
}
const KernelTable& cpu() {
  return *cpu_variant().table;
}

}  // namespace

void elementwise(const ElementwiseArgs& args, Range elements) {
  start(cpu().elementwise, args, elements);
}
void transpose(const ElementwiseArgs& args, Range blocks) {
  start(cpu().transpose, args, blocks);
}
Reduced reduce(const ReduceArgs& args, Range elements) {
  Reduced result{};
  driver::enqueue(stream(), [&] { result = cpu().reduce(args, elements); });
  driver::synchronize(stream());
  return result;
}
void layer_norm(const LayerNormArgs& args, Range rows) {
  start(cpu().layer_norm, args, rows);
}
void layer_norm_backward(const LayerNormBackwardArgs& args, Range rows) {
  start(cpu().layer_norm_backward, args, rows);
}
void gate(const GateArgs& args, Range blocks) {
  start(cpu().gate, args, blocks);
}
void sum_rows(const SumRowsArgs& args, Range rows) {
  start(cpu().sum_rows, args, rows);
}
void fold(const FoldArgs& args, Range elements) {
  start(cpu().fold, args, elements);
}
void gather_rows(const IndexedRowsArgs& args, Range rows) {
  start(cpu().gather_rows, args, rows);
}
void scatter_add_rows(const IndexedRowsArgs& args, Range rows) {
  start(cpu().scatter_add_rows, args, rows);
}
void softmax_tile(const SoftmaxArgs& args, Range rows) {
  start(cpu().softmax_tile, args, rows);
}
void softmax_tile_backward(const SoftmaxArgs& args, Range queries) {
  start(cpu().softmax_tile_backward, args, queries);
}

}  // namespace tessera::gpu_imitation

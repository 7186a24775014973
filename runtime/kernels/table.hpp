// SPDX-License-Identifier: MIT
// The device interface: what a device does, as plain functions of plain arguments. There is one
// table per CPU instruction set and one for CUDA. Arguments are validated before (ops.cpp), which
// also cuts the work: a table's function does the items [begin, end) on the calling thread, or
// starts all of them on the device's stream. No result depends on the cut.
#pragma once

#include <cstdint>

#include "tessera/runtime/dtype.hpp"

namespace tessera {

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

inline constexpr int kMaxDims = 8;

struct Strided {
  void* data;
  DType dtype;
  std::int64_t strides[kMaxDims];
};

// out = op(in...) over a loop of `ndim` >= 1 dims, the last one innermost. Items: elements.
enum class Elementwise : std::uint8_t { fill, copy, scale, add, multiply, maximum };
struct ElementwiseArgs {
  Elementwise op;
  double alpha;  // the value of fill
  double beta;
  int ndim;
  std::int64_t sizes[kMaxDims];
  Strided out;
  Strided in[2];
};

// A copy between equal dtypes whose last dim has unit stride in out, and the one before in in[0].
// Items: blocks of kTransposeBlock indices of the last dim but one, for each index before.
inline constexpr std::int64_t kTransposeBlock = 16;

// A scalar of the operands in[] of `loop`, as one or two numbers. Items: elements.
enum class Reduction : std::uint8_t { max_abs, sum_of_squares, not_finite, max_difference };
struct ReduceArgs {
  Reduction op;
  ElementwiseArgs loop;
};
struct Reduced {
  double values[2];
};

// c = alpha a b + beta c for each of `batch` matrices, cut into `blocks` of `block_rows` rows of c.
// Items: blocks, those of one matrix together.
struct Matrix {
  void* data;
  std::int64_t batch_stride;
  std::int64_t row_stride;
  std::int64_t column_stride;
};
struct GemmArgs {
  DType dtype;    // of a and b
  DType c_dtype;  // the same, or f32 for bf16
  double alpha;
  double beta;
  std::int64_t batch, m, n, k;
  std::int64_t block_rows, blocks;
  Matrix a, b, c;
  float* workspace;  // for bf16 on the CPU: gemm_workspace() floats for each thread
};
inline constexpr std::int64_t kGemmColumns = 512;  // of b that are converted from bf16 at a time

struct Rows {  // a matrix [rows, channels]
  void* data;
  std::int64_t row_stride;
  std::int64_t channel_stride;
};
// Statistics, weights and their gradients are contiguous, in the accumulation type. Items: rows.
struct LayerNormArgs {
  DType dtype;
  std::int64_t channels;
  double eps;
  bool given_statistics;
  Rows x, y;
  const void* weight;
  const void* bias;
  void* mean;
  void* rstd;
};
struct LayerNormBackwardArgs {
  DType dtype;
  std::int64_t channels;
  Rows dy, x, dx;
  const void* weight;
  const void* mean;
  const void* rstd;
  void* dweight;  // accumulated into
  void* dbias;
};

// Operands [rows, positions] with unit stride in the last dim. Items: blocks of kGateBlock
// positions, those of one row together.
enum class Gate : std::uint8_t {
  gated_product,
  gated_product_backward,
  sigmoid_gate_backward,
  silu_product,
  silu_product_backward
};
inline constexpr std::int64_t kGateBlock = 4096;
struct GateOperand {
  void* data;
  std::int64_t row_stride;
};
struct GateArgs {
  Gate op;
  DType dtype;
  std::int64_t rows, positions;
  GateOperand in[3];
  GateOperand out[3];
  const void* mask;  // [positions] in the accumulation type, or null
};

// sums[c] += sum over rows of x; sums in the accumulation type. Items: rows.
struct SumRowsArgs {
  DType dtype;
  std::int64_t channels;
  Rows x;
  void* sums;
};

struct KernelTable {
  const char* name;
  void (*elementwise)(const ElementwiseArgs&, Range elements);
  void (*transpose)(const ElementwiseArgs&, Range blocks);
  Reduced (*reduce)(const ReduceArgs&, Range elements);
  void (*gemm)(const GemmArgs&, Range blocks);
  void (*layer_norm)(const LayerNormArgs&, Range rows);
  void (*layer_norm_backward)(const LayerNormBackwardArgs&, Range rows);
  void (*gate)(const GateArgs&, Range blocks);
  void (*sum_rows)(const SumRowsArgs&, Range rows);
};

}  // namespace tessera

// SPDX-License-Identifier: MIT
// The device interface: what a device does, as plain functions of plain arguments. There is one
// table per CPU instruction set and one per kind of GPU. Arguments are validated before (ops.cpp),
// which also cuts the work: a table's function does the items [begin, end) on the calling thread,
// or starts all of them on the device's stream. No result depends on the cut.
#pragma once

#include <cstdint>

#include "tessera/runtime/dtype.hpp"
#include "tessera/runtime/fold.hpp"

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
enum class Elementwise : std::uint8_t {
  fill,  // with alpha
  copy,
  // of one operand; scale: alpha in[0]
  scale,
  cos,
  sin,
  relu,
  round,
  log,
  exp,
  abs,
  sign,
  sigmoid,
  sqrt,
  logical_not,
  step,
  // of two; add: alpha in[0] + beta in[1]
  add,
  multiply,
  divide,
  maximum,
  minimum,
  power,
  equal,
  less,
  less_equal,
  logical_and,
  bit_and,
  // of three: in[0] != 0 ? in[1] : in[2]
  select
};
inline constexpr Elementwise kLastElementwise = Elementwise::select;
constexpr int inputs_of(Elementwise op) {
  if (op == Elementwise::fill) return 0;
  return op < Elementwise::add ? 1 : op < Elementwise::select ? 2 : 3;
}
// The others are computed in floating point, whatever their operands are.
constexpr bool has_integer_form(Elementwise op) {
  using E = Elementwise;
  return op != E::cos && op != E::sin && op != E::log && op != E::exp && op != E::sigmoid &&
         op != E::sqrt && op != E::divide;
}
struct ElementwiseArgs {
  Elementwise op;
  DType arithmetic;  // f64, f32 or i64; not for fill and copy, which convert
  double alpha;
  double beta;
  int ndim;
  std::int64_t sizes[kMaxDims];
  Strided out;
  Strided in[3];
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

// out = the sums, maxima, minima or the index of the first maximum of in[0] over the loop
// `reduced`, whose offsets are added to those of in[0] in `kept`. The loops' ops, out in `reduced`
// and in[1], in[2] are not used. Integers are reduced in i64, all else in f64. Items: elements of
// `kept`.
struct FoldArgs {
  Fold op;
  bool by_column;      // neighbours in memory belong to different elements of out
  std::int64_t count;  // elements of `reduced`
  ElementwiseArgs kept;
  ElementwiseArgs reduced;
};

// Rows of `features` elements with unit stride, chosen by index[k * index_stride], k < count.
struct IndexedRowsArgs {
  DType src_dtype;
  DType out_dtype;
  std::int64_t features;
  std::int64_t count;
  std::int64_t rows;  // that an index may choose
  const std::int64_t* index;
  std::int64_t index_stride;
  const void* src;
  std::int64_t src_stride;  // of rows
  void* out;
  std::int64_t out_stride;
};

// Tiles [groups, queries, keys]; strides: of groups, of queries, 1. Those of f32 or f64 `dtype`,
// but for the terms; terms and dbias may be absent (data == null). Items: rows of queries
// (forward), queries of all groups (backward).
struct SoftmaxArgs {
  DType dtype;
  std::int64_t groups, queries, keys, channels;
  bool first;
  Strided logits;
  struct Term {  // adds factor (value - shift)
    Strided values;
    double factor, shift;
  } terms[2];            // in the order of addition
  Strided maximum, sum;  // strides: of groups, of queries; sum: the logarithm, backward
  Strided weighted;      // of groups, of queries, 1 (forward)
  Strided d;             // backward
  Strided dweights, dbias;
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
  void (*fold)(const FoldArgs&, Range elements);
  // out[k] = src[index[k]], zero where that is negative; equal dtypes. Items: rows of out.
  void (*gather_rows)(const IndexedRowsArgs&, Range rows);
  // out[index[k]] += src[k] in ascending k, but for negative indices. Items: rows of out.
  void (*scatter_add_rows)(const IndexedRowsArgs&, Range rows);
  void (*softmax_tile)(const SoftmaxArgs&, Range rows);
  void (*softmax_tile_backward)(const SoftmaxArgs&, Range queries);
};

}  // namespace tessera

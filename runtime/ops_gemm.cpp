// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {
namespace {

// Rows of c that are multiplied at a time. They depend on the sizes only, so that each element's
// sum is formed in the same order whatever the number of threads. Large ones reuse b best; products
// that give few of them are cut finer, to occupy more threads.
std::int64_t rows_per_block(std::int64_t batch, std::int64_t m) {
  constexpr std::int64_t large = 256;
  constexpr std::int64_t enough = 16;
  const std::int64_t rows = batch * ((m + large - 1) / large) < enough ? large / 2 : large;
  return std::min(rows, m);
}

// A view [batch, rows, columns] as a Matrix, one of whose strides is 1.
Matrix matrix_of(const Tensor& x) {
  const std::size_t first = x.shape().size() - 2;
  Matrix matrix{x.data(), first == 1 ? x.strides()[0] : 0, x.strides()[first],
                x.strides()[first + 1]};
  // The stride of a dim of one element says nothing; give it a value that every library accepts.
  const std::int64_t rows = x.shape()[first];
  const std::int64_t columns = x.shape()[first + 1];
  if (columns == 1 && matrix.row_stride != 1) matrix.column_stride = 1;
  if (rows == 1 && matrix.column_stride != 1) matrix.row_stride = 1;
  if (matrix.column_stride == 1 && rows == 1) matrix.row_stride = columns;
  if (matrix.column_stride != 1 && columns == 1) matrix.column_stride = rows;
  return matrix;
}

bool has_unit_stride(const Matrix& matrix) {
  return matrix.row_stride == 1 || matrix.column_stride == 1;
}

// Rows (or columns) that overlap, as in a broadcast view, are copied: cuBLAS refuses them.
bool overlaps(const Tensor& x, const Matrix& matrix) {
  return matrix.column_stride == 1 ? matrix.row_stride < x.shape().back()
                                   : matrix.column_stride < *(x.shape().end() - 2);
}

Tensor operand(const char* name, const Tensor& x) {
  const Matrix matrix = matrix_of(x);
  if (!has_unit_stride(matrix))
    check::bad_strides("gemm", {name, x}, "unit stride in one of the last two dims");
  if (!overlaps(x, matrix)) return x;
  PurposeScope workspace(Purpose::workspace);
  return x.clone();
}

void check_operands(const Tensor& a, const Tensor& b, const Tensor& c) {
  check::same_device("gemm", {{"a", a}, {"b", b}, {"c", c}});
  check::floating("gemm", {{"a", a}, {"b", b}, {"c", c}});
  check::dtype("gemm", {"b", b}, a.dtype());
  if (c.dtype() != DType::f32 || a.dtype() != DType::bf16)
    check::dtype("gemm", {"c", c}, a.dtype());
  const int ndim = a.ndim();
  if (ndim != 2 && ndim != 3) check::dims("gemm", {"a", a}, 2);
  check::dims("gemm", {"b", b}, ndim);
  check::dims("gemm", {"c", c}, ndim);
  Shape b_shape = b.shape();
  Shape c_shape = a.shape();
  b_shape[static_cast<std::size_t>(ndim) - 2] = a.shape().back();
  if (ndim == 3) b_shape[0] = a.shape()[0];
  c_shape.back() = b.shape().back();
  check::shape("gemm", {"b", b}, b_shape);
  check::shape("gemm", {"c", c}, c_shape);
  check::unit_stride("gemm", {"c", c});
}

std::int64_t workspace_floats(const GemmArgs& args) {
  const std::int64_t width = std::min(args.n, kGemmColumns);
  return args.block_rows * args.k + args.k * width + args.block_rows * width;
}

std::atomic<std::int64_t> flops_done{0};

void count_flops(std::int64_t flops) {
  flops_done.fetch_add(flops, std::memory_order_relaxed);
}

}  // namespace

std::int64_t product_flops() {
  return flops_done.load(std::memory_order_relaxed);
}

void gemm(double alpha, const Tensor& a, const Tensor& b, double beta, const Tensor& c) {
  check_operands(a, b, c);
  c.bump_version();
  if (c.numel() == 0) return;
  if (a.numel() == 0) return beta == 0 ? fill(c, 0) : scale(beta, c);
  const Tensor a_used = operand("a", a);
  const Tensor b_used = operand("b", b);

  GemmArgs args{};
  args.dtype = a.dtype();
  args.c_dtype = c.dtype();
  args.alpha = alpha;
  args.beta = beta;
  args.batch = a.ndim() == 3 ? a.size(0) : 1;
  args.m = c.size(-2);
  args.n = c.size(-1);
  args.k = a.size(-1);
  args.block_rows = rows_per_block(args.batch, args.m);
  args.blocks = (args.m + args.block_rows - 1) / args.block_rows;
  args.a = matrix_of(a_used);
  args.b = matrix_of(b_used);
  args.c = matrix_of(c);

  count_flops(2 * args.batch * args.m * args.n * args.k);

  const Device device = c.device();
  const KernelTable& table = kernel_table(device);
  const bool converts = !is_gpu(device) && args.dtype == DType::bf16;
  const std::int64_t flops_per_block = 2 * args.block_rows * args.n * args.k;
  const std::int64_t grain = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / flops_per_block);
  run_lanes(device, args.batch * args.blocks, grain,
            [&](std::int64_t begin, std::int64_t end, int) {
              GemmArgs own = args;
              Tensor workspace;
              if (converts) {
                workspace = scratch({workspace_floats(args)}, DType::f32, cpu_device);
                own.workspace = workspace.host_data<float>();
              }
              table.gemm(own, {begin, end});
            });
}

}  // namespace tessera

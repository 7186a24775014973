// SPDX-License-Identifier: MIT
// Matrix products by Eigen, whose namespace the build renames for each instruction set, but for
// narrow ones.
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_NO_DEBUG
#define EIGEN_MPL2_ONLY
#include <Eigen/Core>

#include "tessera/runtime/cpu/narrow_product.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

template <class T, int Order>
using View =
    Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>, 0, Eigen::OuterStride<>>;
template <class T, int Order>
using ConstView = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Order>, 0,
                             Eigen::OuterStride<>>;

template <class T, int OrderA, int OrderB>
void multiply_ordered(const Product<T>& p) {
  const auto outer = [](const Operand<T>& x, int order) {
    return Eigen::OuterStride<>(order == Eigen::RowMajor ? x.row_stride : x.column_stride);
  };
  const ConstView<T, OrderA> a(p.a.data, p.m, p.k, outer(p.a, OrderA));
  const ConstView<T, OrderB> b(p.b.data, p.k, p.n, outer(p.b, OrderB));
  View<T, Eigen::RowMajor> c(p.c, p.m, p.n, Eigen::OuterStride<>(p.c_stride));
  c.noalias() += p.alpha * a * b;
}

template <class T>
void scale_block(T* c, std::int64_t stride, std::int64_t rows, std::int64_t columns, T beta) {
  if (beta == T(1)) return;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      c[i * stride + j] = beta == T(0) ? T(0) : beta * c[i * stride + j];
}

template <class T>
void multiply(const Product<T>& p) {
  if (narrow_product::suits(p)) return narrow_product::multiply(p);
  scale_block(p.c, p.c_stride, p.m, p.n, p.beta);
  constexpr int row = Eigen::RowMajor;
  constexpr int column = Eigen::ColMajor;
  if (p.a.column_stride == 1)
    p.b.column_stride == 1 ? multiply_ordered<T, row, row>(p) : multiply_ordered<T, row, column>(p);
  else
    p.b.column_stride == 1 ? multiply_ordered<T, column, row>(p)
                           : multiply_ordered<T, column, column>(p);
}

// One block of rows of c.
template <class T>
void block(const GemmArgs& args, const T* a, const T* b, T* c, std::int64_t rows) {
  multiply<T>({static_cast<T>(args.alpha),
               static_cast<T>(args.beta),
               rows,
               args.n,
               args.k,
               {a, args.a.row_stride, args.a.column_stride},
               {b, args.b.row_stride, args.b.column_stride},
               c,
               args.c.row_stride});
}

// A copy in f32 that keeps the operand's order.
Operand<float> widened(Operand<bf16> from, std::int64_t rows, std::int64_t columns, float* to) {
  const bool by_row = from.column_stride == 1;
  const std::int64_t outer = by_row ? rows : columns;
  const std::int64_t inner = by_row ? columns : rows;
  const std::int64_t stride = by_row ? from.row_stride : from.column_stride;
  for (std::int64_t o = 0; o < outer; ++o) {
#pragma omp simd
    for (std::int64_t i = 0; i < inner; ++i) to[o * inner + i] = widen(from.data[o * stride + i]);
  }
  return {to, by_row ? inner : 1, by_row ? 1 : inner};
}

template <class C>
void block_bf16(const GemmArgs& args, const bf16* a, const bf16* b, C* c, std::int64_t rows) {
  const std::int64_t width = smaller(args.n, kGemmColumns);
  float* const a_copy = args.workspace;
  float* const b_copy = a_copy + args.block_rows * args.k;
  float* const sums = b_copy + args.k * width;
  const auto wide_a = widened({a, args.a.row_stride, args.a.column_stride}, rows, args.k, a_copy);
  for (std::int64_t first = 0; first < args.n; first += width) {
    const std::int64_t columns = smaller(width, args.n - first);
    const auto wide_b =
        widened({b + first * args.b.column_stride, args.b.row_stride, args.b.column_stride}, args.k,
                columns, b_copy);
    multiply<float>({static_cast<float>(args.alpha), 0.0f, rows, columns, args.k, wide_a, wide_b,
                     sums, columns});
    const float beta = static_cast<float>(args.beta);
    for (std::int64_t i = 0; i < rows; ++i) {
      C* to = c + i * args.c.row_stride + first;
      const float* from = sums + i * columns;
      if (beta == 0.0f) {
#pragma omp simd
        for (std::int64_t j = 0; j < columns; ++j) store(to[j], from[j]);
      } else {
#pragma omp simd
        for (std::int64_t j = 0; j < columns; ++j) store(to[j], from[j] + beta * load(to[j]));
      }
    }
  }
}

template <class T, class C, class Body>
void for_each_block(const GemmArgs& args, Range blocks, Body&& body) {
  for (std::int64_t at = blocks.begin; at < blocks.end; ++at) {
    const std::int64_t matrix = at / args.blocks;
    const std::int64_t row = at % args.blocks * args.block_rows;
    body(args, pointer<T>(args.a.data) + matrix * args.a.batch_stride + row * args.a.row_stride,
         pointer<T>(args.b.data) + matrix * args.b.batch_stride,
         pointer<C>(args.c.data) + matrix * args.c.batch_stride + row * args.c.row_stride,
         smaller(args.block_rows, args.m - row));
  }
}

}  // namespace

void gemm(const GemmArgs& args, Range blocks) {
  if (args.dtype == DType::f64) return for_each_block<double, double>(args, blocks, block<double>);
  if (args.dtype == DType::f32) return for_each_block<float, float>(args, blocks, block<float>);
  if (args.c_dtype == DType::f32)
    return for_each_block<bf16, float>(args, blocks, block_bf16<float>);
  for_each_block<bf16, bf16>(args, blocks, block_bf16<bf16>);
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

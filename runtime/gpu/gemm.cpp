// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/kernels.hpp"
#include "tessera/runtime/tf32.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

// A matrix stored by rows is the transpose of what a library that counts by columns takes it for.
driver::Gemm::Operand operand_of(const Matrix& matrix) {
  const bool by_row = matrix.column_stride == 1;
  return {matrix.data, !by_row, by_row ? matrix.row_stride : matrix.column_stride,
          matrix.batch_stride};
}

}  // namespace

// c' = alpha b' a' + beta c', where ' is the transpose.
void gemm(const GemmArgs& args, Range) {
  driver::gemm(blas(), {.dtype = args.dtype,
                        .c_dtype = args.c_dtype,
                        .tf32 = tf32() && args.dtype == DType::f32,
                        .m = args.n,
                        .n = args.m,
                        .k = args.k,
                        .batch = args.batch,
                        .alpha = args.alpha,
                        .beta = args.beta,
                        .a = operand_of(args.b),
                        .b = operand_of(args.a),
                        .c = args.c.data,
                        .c_leading = args.c.row_stride,
                        .c_batch_stride = args.c.batch_stride});
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE

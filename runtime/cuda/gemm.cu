// SPDX-License-Identifier: MIT
#include "tessera/runtime/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::f64) return CUDA_R_64F;
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

// A row-major matrix is the transpose of what cuBLAS, which counts by columns, takes it for.
struct Operand {
  cublasOperation_t operation;
  std::int64_t leading;
};
Operand operand_of(const Matrix& matrix) {
  if (matrix.column_stride == 1) return {CUBLAS_OP_N, matrix.row_stride};
  return {CUBLAS_OP_T, matrix.column_stride};
}

}  // namespace

// c' = alpha b' a' + beta c', where ' is the transpose.
void gemm(const GemmArgs& args, Range) {
  const Operand a = operand_of(args.a);
  const Operand b = operand_of(args.b);
  const bool wide = args.dtype == DType::f64;
  const float alpha = static_cast<float>(args.alpha);
  const float beta = static_cast<float>(args.beta);
  check(
      cublasGemmStridedBatchedEx_64(
          cublas(), b.operation, a.operation, args.n, args.m, args.k,
          wide ? static_cast<const void*>(&args.alpha) : &alpha, args.b.data, data_type(args.dtype),
          b.leading, args.b.batch_stride, args.a.data, data_type(args.dtype), a.leading,
          args.a.batch_stride, wide ? static_cast<const void*>(&args.beta) : &beta, args.c.data,
          data_type(args.c_dtype), args.c.row_stride, args.c.batch_stride, args.batch,
          wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmStridedBatchedEx_64");
}

}  // namespace tessera::cuda

// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/imitation/product.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/scalar.hpp"

namespace tessera::gpu_imitation {
namespace {

// The mantissa to 10 bits, to nearest.
template <class A>
A as_used(A value, bool tf32) {
  if constexpr (is_same<A, float>)
    return tf32 ? bits_as<float>((bits_as<std::uint32_t>(value) + 0x1000u) & ~0x1fffu) : value;
  else
    return value;
}

// Column j of c. Sums are formed in ascending order of the inner index.
template <class T, class C>
void multiply_column(const driver::Gemm& p, const T* a, const T* b, C* c, std::int64_t j) {
  using A = Acc<T>;
  std::vector<A> sums(static_cast<std::size_t>(p.m), A(0));
  for (std::int64_t l = 0; l < p.k; ++l) {
    const A factor =
        as_used(load(p.b.transposed ? b[l * p.b.leading + j] : b[j * p.b.leading + l]), p.tf32);
    const T* from = p.a.transposed ? a + l : a + l * p.a.leading;
    const std::int64_t step = p.a.transposed ? p.a.leading : 1;
    for (std::int64_t i = 0; i < p.m; ++i)
      sums[static_cast<std::size_t>(i)] += as_used(load(from[i * step]), p.tf32) * factor;
  }
  const auto alpha = static_cast<A>(p.alpha);
  const auto beta = static_cast<A>(p.beta);
  for (std::int64_t i = 0; i < p.m; ++i) {
    C& to = c[j * p.c_leading + i];
    const A product = alpha * sums[static_cast<std::size_t>(i)];
    store(to, beta == A(0) ? product : product + beta * load(to));
  }
}

template <class T, class C>
void multiply_as(const driver::Gemm& p) {
  for (std::int64_t e = 0; e < p.batch; ++e)
    for (std::int64_t j = 0; j < p.n; ++j)
      multiply_column(p, static_cast<const T*>(p.a.data) + e * p.a.batch_stride,
                      static_cast<const T*>(p.b.data) + e * p.b.batch_stride,
                      static_cast<C*>(p.c) + e * p.c_batch_stride, j);
}

void check_leading(const char* name, std::int64_t found, std::int64_t rows) {
  if (found >= std::max<std::int64_t>(rows, 1)) return;
  throw DeviceError({.problem = "a leading dimension is smaller than the matrix",
                     .operation = "gemm",
                     .tensor = name,
                     .found = fmt::format("{}", found),
                     .expected = fmt::format("{} or more", rows)});
}

}  // namespace

void check_product(const driver::Gemm& p) {
  check_leading("a", p.a.leading, p.a.transposed ? p.k : p.m);
  check_leading("b", p.b.leading, p.b.transposed ? p.n : p.k);
  check_leading("c", p.c_leading, p.m);
}

void multiply(const driver::Gemm& p) {
  if (p.dtype == DType::f64) return multiply_as<double, double>(p);
  if (p.dtype == DType::f32) return multiply_as<float, float>(p);
  if (p.c_dtype == DType::f32) return multiply_as<bf16, float>(p);
  multiply_as<bf16, bf16>(p);
}

}  // namespace tessera::gpu_imitation

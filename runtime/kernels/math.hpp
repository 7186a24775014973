// SPDX-License-Identifier: MIT
// Elementary functions. exp and sigmoid have no branches or tables, so that loops over them
// vectorise.
#pragma once

#include "tessera/runtime/kernels/scalar.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln(2) / 2, and the Taylor series of e^r, whose
// first omitted term is below half an ulp. n is taken from the low bits of x / ln 2 + magic.
template <class A, class Bits>
struct ExpParts {
  A fraction;  // e^r
  Bits n;      // modulo 2^32 or 2^64
};
TESSERA_HD inline ExpParts<float, std::uint32_t> exp_parts(float x) {
  constexpr float magic = 12582912.0f;  // 1.5 * 2^23
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = (p * r) * r + r + 1.0f;
  return {p, bits_as<std::uint32_t>(shifted) - bits_as<std::uint32_t>(magic)};
}
TESSERA_HD inline ExpParts<double, std::uint64_t> exp_parts(double x) {
  constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * 1.4426950408889634 + magic;
  const double n = shifted - magic;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = (p * r) * r + r + 1.0;
  return {p, bits_as<std::uint64_t>(shifted) - bits_as<std::uint64_t>(magic)};
}
// 2^n of a normal number.
TESSERA_HD inline float power_of_two(std::uint32_t n) {
  return bits_as<float>((n + 127u) << 23);
}
TESSERA_HD inline double power_of_two(std::uint64_t n) {
  return bits_as<double>((n + 1023u) << 52);
}

// 2^n is applied in two factors, so that results may be denormal or infinite. NaN gives NaN.
TESSERA_HD inline float exp(float x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  const auto [fraction, n] = exp_parts(x);
  const std::uint32_t half = (n + 1024u) / 2u - 512u;
  return fraction * power_of_two(half) * power_of_two(n - half);
}
TESSERA_HD inline double exp(double x) {
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  const auto [fraction, n] = exp_parts(x);
  const std::uint64_t half = (n + 4096u) / 2u - 2048u;
  return fraction * power_of_two(half) * power_of_two(n - half);
}

// The same for weights: x is at most about 0, and what would be denormal is 0. NaN gives NaN.
TESSERA_HD inline float exp_of_negative(float x) {
  const auto [fraction, n] = exp_parts(x);
  const float value = fraction * power_of_two(n);
  return x < -87.0f ? 0.0f : value;
}
TESSERA_HD inline double exp_of_negative(double x) {
  const auto [fraction, n] = exp_parts(x);
  const double value = fraction * power_of_two(n);
  return x < -708.0 ? 0.0 : value;
}

TESSERA_HD inline float square_root(float x) {
  return __builtin_sqrtf(x);
}
TESSERA_HD inline double square_root(double x) {
  return __builtin_sqrt(x);
}
TESSERA_HD inline float absolute(float x) {
  return __builtin_fabsf(x);
}
TESSERA_HD inline double absolute(double x) {
  return __builtin_fabs(x);
}
TESSERA_HD inline float round_to_even(float x) {
  return __builtin_rintf(x);
}
TESSERA_HD inline double round_to_even(double x) {
  return __builtin_rint(x);
}

// Those of the C library.
TESSERA_HD inline float cosine(float x) {
  return __builtin_cosf(x);
}
TESSERA_HD inline double cosine(double x) {
  return __builtin_cos(x);
}
TESSERA_HD inline float sine(float x) {
  return __builtin_sinf(x);
}
TESSERA_HD inline double sine(double x) {
  return __builtin_sin(x);
}
TESSERA_HD inline float logarithm(float x) {
  return __builtin_logf(x);
}
TESSERA_HD inline double logarithm(double x) {
  return __builtin_log(x);
}
TESSERA_HD inline float power(float x, float y) {
  return __builtin_powf(x, y);
}
TESSERA_HD inline double power(double x, double y) {
  return __builtin_pow(x, y);
}
// Modulo 2^64; of a negative exponent, the reciprocal's whole part (0 for the base 0).
TESSERA_HD inline std::int64_t power(std::int64_t x, std::int64_t y) {
  if (y < 0) return x == 1 ? 1 : x == -1 ? 1 - 2 * (y & 1) : 0;
  std::uint64_t result = 1;
  for (auto base = static_cast<std::uint64_t>(x); y > 0; y /= 2, base *= base)
    if (y % 2 == 1) result *= base;
  return static_cast<std::int64_t>(result);
}

// s(x) and 1 - s(x), both to full relative accuracy: e^-|x| cannot overflow and nothing cancels.
template <class A>
struct Sigmoid {
  A value;
  A complement;
};
template <class A>
TESSERA_HD inline Sigmoid<A> sigmoid(A x) {
  const A z = exp(x < A(0) ? x : -x);
  const A scale = A(1) / (A(1) + z);
  const A small = z * scale;
  return {x < A(0) ? small : scale, x < A(0) ? scale : small};
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

// SPDX-License-Identifier: MIT
// Scalars of kernels: conversions between element types, and the type in which each is computed.
// Everything here is inline and lives in a namespace of its own per instruction set (and per kind
// of GPU), so that the linker can never pick code compiled for another processor.
#pragma once

#include <cstdint>

#include "tessera/runtime/dtype.hpp"

// Marks a kernel body. A call that is not inlined would keep the loop around it from vectorising.
#ifdef __CUDACC__
#define TESSERA_HD __host__ __device__
#else
#define TESSERA_HD [[gnu::always_inline]]
#endif

#ifndef TESSERA_KERNELS_NAMESPACE
#define TESSERA_KERNELS_NAMESPACE kernels_portable
#endif

namespace tessera::TESSERA_KERNELS_NAMESPACE {

template <class To, class From>
TESSERA_HD inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

// The type in which elements of type T are computed.
template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<bf16> {
  using type = float;
};
template <class T>
using Acc = typename Accumulator<T>::type;

TESSERA_HD inline float widen(bf16 value) {
  return bits_as<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest even; a NaN stays one.
TESSERA_HD inline bf16 narrow(float value) {
  const auto bits = bits_as<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return {static_cast<std::uint16_t>(value != value ? quiet : rounded)};
}

// f64 to f32, to odd: rounding the result again gives what rounding once would have given.
TESSERA_HD inline float round_to_odd(double value) {
  const auto near = static_cast<float>(value);
  const double error = value - static_cast<double>(near);
  const auto bits = bits_as<std::uint32_t>(near);
  const bool move = (error < 0 || error > 0) && (bits & 1u) == 0;
  const bool away = (error > 0) == ((bits >> 31) == 0);
  return bits_as<float>(move ? (away ? bits + 1u : bits - 1u) : bits);
}

// Value conversion between any two element types. Booleans are 0 or 1; floating to integer
// truncates and saturates, NaN becomes 0.
template <class To, class From>
TESSERA_HD inline To convert(From value) {
  if constexpr (is_same<To, From>) {
    return value;
  } else if constexpr (is_same<From, bf16>) {
    return convert<To>(widen(value));
  } else if constexpr (is_same<To, bf16>) {
    if constexpr (is_same<From, double>)
      return narrow(round_to_odd(value));
    else if constexpr (sizeof(From) == 8)
      return narrow(round_to_odd(static_cast<double>(value)));
    else
      return narrow(static_cast<float>(value));
  } else if constexpr (is_same<To, std::uint8_t>) {
    return static_cast<To>(value < From(0) || value > From(0) || value != value);
  } else if constexpr (static_cast<To>(0.5) == To(0) && static_cast<From>(0.5) != From(0)) {
    constexpr To highest = static_cast<To>(~(std::uint64_t{1} << 63) >> (64 - 8 * sizeof(To)));
    constexpr To lowest = static_cast<To>(-highest - 1);
    if (value != value) return To(0);
    if (value >= -static_cast<From>(lowest)) return highest;
    if (value < static_cast<From>(lowest)) return lowest;
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class T>
TESSERA_HD inline Acc<T> load(const T& from) {
  return convert<Acc<T>>(from);
}
template <class T>
TESSERA_HD inline void store(T& to, Acc<T> value) {
  to = convert<T>(value);
}

// Calls body(Type<T>{}) with the element type of `dtype`.
template <class T>
struct Type {
  using type = T;
};
template <class Body>
inline void with_floating(DType dtype, Body&& body) {
  if (dtype == DType::f64) return body(Type<double>{});
  if (dtype == DType::f32) return body(Type<float>{});
  body(Type<bf16>{});
}
template <class Body>
inline void with_any(DType dtype, Body&& body) {
  if (dtype == DType::i64) return body(Type<std::int64_t>{});
  if (dtype == DType::i32) return body(Type<std::int32_t>{});
  if (dtype == DType::boolean) return body(Type<std::uint8_t>{});
  with_floating(dtype, static_cast<Body&&>(body));
}
// With the unsigned integer as wide as an element: moves bits, not values.
template <class Body>
inline void with_bits(DType dtype, Body&& body) {
  with_any(dtype, [&](auto type) {
    constexpr auto bytes = sizeof(typename decltype(type)::type);
    if constexpr (bytes == 8)
      body(Type<std::uint64_t>{});
    else if constexpr (bytes == 4)
      body(Type<std::uint32_t>{});
    else if constexpr (bytes == 2)
      body(Type<std::uint16_t>{});
    else
      body(Type<std::uint8_t>{});
  });
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

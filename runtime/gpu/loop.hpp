// SPDX-License-Identifier: MIT
// How kernels address the elements of a loop (kernels/table.hpp).
#pragma once

#include "tessera/runtime/gpu/launch.hpp"
#include "tessera/runtime/kernels/scalar.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {

struct Offsets {
  std::int64_t out;
  std::int64_t in[3];
};
TESSERA_DEVICE Offsets offsets_of(const ElementwiseArgs& args, std::int64_t element) {
  Offsets at{0, {0, 0, 0}};
  for (int d = args.ndim - 1; d >= 0; --d) {
    const std::int64_t rest = d > 0 ? element / args.sizes[d] : 0;
    const std::int64_t index = element - rest * args.sizes[d];
    element = rest;
    at.out += index * args.out.strides[d];
    for (int i = 0; i < 3; ++i) at.in[i] += index * args.in[i].strides[d];
  }
  return at;
}

// with_any (kernels/scalar.hpp) on the device.
template <class Body>
TESSERA_DEVICE void with_element(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::f64:
      return body(Type<double>{});
    case DType::f32:
      return body(Type<float>{});
    case DType::bf16:
      return body(Type<bf16>{});
    case DType::i64:
      return body(Type<std::int64_t>{});
    case DType::i32:
      return body(Type<std::int32_t>{});
    case DType::boolean:
      return body(Type<std::uint8_t>{});
  }
}

template <class A>
TESSERA_DEVICE A read(const Strided& operand, std::int64_t at) {
  A value{};
  with_element(operand.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    value = convert<A>(static_cast<const T*>(operand.data)[at]);
  });
  return value;
}

template <class A>
TESSERA_DEVICE void write(const Strided& operand, std::int64_t at, A value) {
  with_element(operand.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    static_cast<T*>(operand.data)[at] = convert<T>(value);
  });
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE

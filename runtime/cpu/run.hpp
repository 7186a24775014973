// SPDX-License-Identifier: MIT
// Runs: the pieces along the last dim in which the CPU's kernels walk a loop.
#pragma once

#include "tessera/runtime/cpu/variant.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

// Walks [begin, end) of the loop's elements in runs along the last dim: body(offsets, length), the
// offset of the run's first element in out and in each of in[].
template <class Body>
void for_each_run(const ElementwiseArgs& args, Range elements, Body&& body) {
  const int last = args.ndim - 1;
  const std::int64_t width = args.sizes[last];
  constexpr int count = 4;
  const Strided* operands[count] = {&args.out, &args.in[0], &args.in[1], &args.in[2]};
  std::int64_t index[kMaxDims];
  std::int64_t offsets[count] = {};
  std::int64_t rest = elements.begin;
  for (int d = last; d >= 0; --d) {
    index[d] = rest % args.sizes[d];
    rest /= args.sizes[d];
    for (int o = 0; o < count; ++o) offsets[o] += index[d] * operands[o]->strides[d];
  }
  for (std::int64_t at = elements.begin; at < elements.end;) {
    const std::int64_t length = smaller(width - index[last], elements.end - at);
    body(offsets, length);
    at += length;
    for (int o = 0; o < count; ++o) offsets[o] -= index[last] * operands[o]->strides[last];
    index[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      for (int o = 0; o < count; ++o) offsets[o] += operands[o]->strides[d];
      if (++index[d] < args.sizes[d]) break;
      for (int o = 0; o < count; ++o) offsets[o] -= args.sizes[d] * operands[o]->strides[d];
      index[d] = 0;
    }
  }
}

template <class From, class To>
void convert_run(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride,
                 std::int64_t length) {
  if (from_stride == 1 && to_stride == 1) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < length; ++i) to[i] = convert<To>(from[i]);
  } else if (from_stride == 0 && to_stride == 1) {
    const To value = convert<To>(*from);
    for (std::int64_t i = 0; i < length; ++i) to[i] = value;
  } else {
    for (std::int64_t i = 0; i < length; ++i)
      to[i * to_stride] = convert<To>(from[i * from_stride]);
  }
}

// Elements computed at a time: operands of another type or with gaps pass through a buffer.
constexpr std::int64_t kBlock = 512;

template <class A>
inline constexpr DType dtype_of = is_same<A, double>  ? DType::f64
                                  : is_same<A, float> ? DType::f32
                                                      : DType::i64;

// The elements of a run as A: in place if they are that already, else in `buffer`.
template <class A>
const A* load_run(const Strided& operand, std::int64_t offset, std::int64_t stride,
                  std::int64_t length, A* buffer) {
  const A* direct = nullptr;
  with_any(operand.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* from = pointer<T>(operand.data) + offset;
    if constexpr (is_same<T, A>) {
      if (stride == 1) direct = from;
    }
    if (direct == nullptr) convert_run(from, stride, buffer, 1, length);
  });
  return direct != nullptr ? direct : buffer;
}

template <class A>
void store_run(const A* values, const Strided& operand, std::int64_t offset, std::int64_t stride,
               std::int64_t length) {
  with_any(operand.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    convert_run(values, 1, pointer<T>(operand.data) + offset, stride, length);
  });
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/elementwise.hpp"

#include "tessera/runtime/cpu/variant.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

// Walks [begin, end) of the loop's elements in runs along the last dim: body(offsets, length), the
// offset of the run's first element in out, in[0] and in[1].
template <class Body>
void for_each_run(const ElementwiseArgs& args, Range elements, Body&& body) {
  const int last = args.ndim - 1;
  const std::int64_t width = args.sizes[last];
  const Strided* operands[3] = {&args.out, &args.in[0], &args.in[1]};
  std::int64_t index[kMaxDims];
  std::int64_t offsets[3] = {0, 0, 0};
  std::int64_t rest = elements.begin;
  for (int d = last; d >= 0; --d) {
    index[d] = rest % args.sizes[d];
    rest /= args.sizes[d];
    for (int o = 0; o < 3; ++o) offsets[o] += index[d] * operands[o]->strides[d];
  }
  for (std::int64_t at = elements.begin; at < elements.end;) {
    const std::int64_t length = smaller(width - index[last], elements.end - at);
    body(offsets, length);
    at += length;
    for (int o = 0; o < 3; ++o) offsets[o] -= index[last] * operands[o]->strides[last];
    index[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      for (int o = 0; o < 3; ++o) offsets[o] += operands[o]->strides[d];
      if (++index[d] < args.sizes[d]) break;
      for (int o = 0; o < 3; ++o) offsets[o] -= args.sizes[d] * operands[o]->strides[d];
      index[d] = 0;
    }
  }
}

template <class From, class To>
void convert_run(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride,
                 std::int64_t length) {
  if (from_stride == 1 && to_stride == 1) {
#pragma omp simd
    for (std::int64_t i = 0; i < length; ++i) to[i] = convert<To>(from[i]);
  } else {
    for (std::int64_t i = 0; i < length; ++i)
      to[i * to_stride] = convert<To>(from[i * from_stride]);
  }
}

// Elements computed at a time: operands of another type or with gaps pass through a buffer.
constexpr std::int64_t kBlock = 512;

template <class A>
const A* load_run(const Strided& operand, std::int64_t offset, std::int64_t stride,
                  std::int64_t length, A* buffer) {
  const A* direct = nullptr;
  with_floating(operand.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T* from = pointer<T>(operand.data) + offset;
    if constexpr (is_same<T, A>) {
      if (stride == 1) direct = from;
    }
    if (direct == nullptr) convert_run(from, stride, buffer, 1, length);
  });
  return direct != nullptr ? direct : buffer;
}

template <class A, class Op>
void compute_run(const Op& op, const A* a, const A* b, A* out, std::int64_t length) {
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i) out[i] = op(a[i], b[i]);
}

template <class A, class Op>
void compute(const ElementwiseArgs& args, Range elements, const Op& op) {
  const int last = args.ndim - 1;
  constexpr DType own = is_same<A, double> ? DType::f64 : DType::f32;
  const bool direct = args.out.dtype == own && args.out.strides[last] == 1;
  for_each_run(args, elements, [&](const std::int64_t* offsets, std::int64_t length) {
    A buffers[3][kBlock];
    for (std::int64_t i = 0; i < length; i += kBlock) {
      const std::int64_t n = smaller(kBlock, length - i);
      const auto input = [&](int which) {
        const std::int64_t stride = args.in[which].strides[last];
        return load_run<A>(args.in[which], offsets[which + 1] + i * stride, stride, n,
                           buffers[which]);
      };
      const A* a = input(0);
      const A* b = Op::inputs == 2 ? input(1) : a;
      const std::int64_t at = offsets[0] + i * args.out.strides[last];
      if (direct) {
        compute_run<A>(op, a, b, pointer<A>(args.out.data) + at, n);
      } else {
        compute_run<A>(op, a, b, buffers[2], n);
        with_floating(args.out.dtype, [&](auto type) {
          using T = typename decltype(type)::type;
          convert_run(buffers[2], 1, pointer<T>(args.out.data) + at, args.out.strides[last], n);
        });
      }
    }
  });
}

template <class A>
void arithmetic(const ElementwiseArgs& args, Range elements) {
  const A alpha = static_cast<A>(args.alpha);
  const A beta = static_cast<A>(args.beta);
  if (args.op == Elementwise::scale) return compute<A>(args, elements, Scale<A>{alpha});
  if (args.op == Elementwise::add) return compute<A>(args, elements, AddScaled<A>{alpha, beta});
  if (args.op == Elementwise::multiply) return compute<A>(args, elements, Multiply<A>{});
  compute<A>(args, elements, Maximum<A>{});
}

template <class From, class To>
void copy_as(const ElementwiseArgs& args, Range elements) {
  const int last = args.ndim - 1;
  const From* from = pointer<From>(args.in[0].data);
  To* to = pointer<To>(args.out.data);
  for_each_run(args, elements, [&](const std::int64_t* offsets, std::int64_t length) {
    convert_run(from + offsets[1], args.in[0].strides[last], to + offsets[0],
                args.out.strides[last], length);
  });
}

// Calls body(Type<U>{}) with the unsigned integer as wide as an element: moves bits, not values.
template <class Body>
void with_bits(DType dtype, Body&& body) {
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

void copy(const ElementwiseArgs& args, Range elements) {
  if (args.in[0].dtype == args.out.dtype)
    return with_bits(args.out.dtype, [&](auto type) {
      using U = typename decltype(type)::type;
      copy_as<U, U>(args, elements);
    });
  with_any(args.in[0].dtype, [&](auto from) {
    with_any(args.out.dtype, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      if constexpr (!is_same<From, To>) copy_as<From, To>(args, elements);
    });
  });
}

void fill(const ElementwiseArgs& args, Range elements) {
  const std::int64_t stride = args.out.strides[args.ndim - 1];
  with_any(args.out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const T value = convert<T>(args.alpha);
    for_each_run(args, elements, [&](const std::int64_t* offsets, std::int64_t length) {
      T* out = pointer<T>(args.out.data) + offsets[0];
      if (stride == 1)
        for (std::int64_t i = 0; i < length; ++i) out[i] = value;
      else
        for (std::int64_t i = 0; i < length; ++i) out[i * stride] = value;
    });
  });
}

// to[j, i] = from[j, i] for j < rows, i < width, where `to` has unit stride in i and `from` in j.
// Whole tiles are read along j into a buffer that stays in registers or L1.
template <class U>
void transpose_tile(const U* from, std::int64_t from_stride, U* to, std::int64_t to_stride,
                    std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t B = kTransposeBlock;
  std::int64_t i = 0;
  for (; rows == B && i + B <= width; i += B) {
    U tile[B][B];
    for (std::int64_t s = 0; s < B; ++s) {
      __builtin_prefetch(from + (i + s + B) * from_stride);  // too far apart for the hardware's own
      for (std::int64_t j = 0; j < B; ++j) tile[j][s] = from[(i + s) * from_stride + j];
    }
    for (std::int64_t j = 0; j < B; ++j)
      for (std::int64_t s = 0; s < B; ++s) to[j * to_stride + i + s] = tile[j][s];
  }
  for (std::int64_t j = 0; j < rows; ++j)
    for (std::int64_t s = i; s < width; ++s) to[j * to_stride + s] = from[s * from_stride + j];
}

}  // namespace

void elementwise(const ElementwiseArgs& args, Range elements) {
  if (args.op == Elementwise::fill) return fill(args, elements);
  if (args.op == Elementwise::copy) return copy(args, elements);
  const bool wide = args.out.dtype == DType::f64 || args.in[0].dtype == DType::f64 ||
                    args.in[1].dtype == DType::f64;
  wide ? arithmetic<double>(args, elements) : arithmetic<float>(args, elements);
}

void transpose(const ElementwiseArgs& args, Range blocks) {
  const int i = args.ndim - 1;
  const int j = args.ndim - 2;
  const std::int64_t per_matrix = (args.sizes[j] + kTransposeBlock - 1) / kTransposeBlock;
  with_bits(args.out.dtype, [&](auto type) {
    using U = typename decltype(type)::type;
    for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
      const std::int64_t row = block % per_matrix * kTransposeBlock;
      const U* from = pointer<U>(args.in[0].data) + row;
      U* to = pointer<U>(args.out.data) + row * args.out.strides[j];
      std::int64_t rest = block / per_matrix;
      for (int d = j - 1; d >= 0; --d) {
        from += rest % args.sizes[d] * args.in[0].strides[d];
        to += rest % args.sizes[d] * args.out.strides[d];
        rest /= args.sizes[d];
      }
      transpose_tile(from, args.in[0].strides[i], to, args.out.strides[j],
                     smaller(kTransposeBlock, args.sizes[j] - row), args.sizes[i]);
    }
  });
}

namespace {

template <class State>
State reduce_with(const ElementwiseArgs& loop, bool two, Range elements) {
  const int last = loop.ndim - 1;
  State state;
  for_each_run(loop, elements, [&](const std::int64_t* offsets, std::int64_t length) {
    double buffers[2][kBlock];
    for (std::int64_t i = 0; i < length; i += kBlock) {
      const std::int64_t n = smaller(kBlock, length - i);
      const double* in[2] = {buffers[0], buffers[0]};
      for (int o = 0; o < (two ? 2 : 1); ++o) {
        const std::int64_t stride = loop.in[o].strides[last];
        in[o] = load_run<double>(loop.in[o], offsets[o + 1] + i * stride, stride, n, buffers[o]);
      }
      for (std::int64_t e = 0; e < n; ++e) state.add(in[0][e], in[1][e]);
    }
  });
  return state;
}

}  // namespace

Reduced reduce(const ReduceArgs& args, Range elements) {
  switch (args.op) {
    case Reduction::max_abs:
      return {{reduce_with<MaxAbs>(args.loop, false, elements).value, 0}};
    case Reduction::sum_of_squares:
      return {{reduce_with<SumOfSquares>(args.loop, false, elements).value, 0}};
    case Reduction::not_finite:
      return {{reduce_with<NotFinite>(args.loop, false, elements).value, 0}};
    default:
      break;
  }
  const auto state = reduce_with<MaxDifference>(args.loop, true, elements);
  return {{state.difference.value, state.reference.value}};
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/elementwise.hpp"

#include "tessera/runtime/cpu/run.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

template <class A>
using ComputeRun = void (*)(const A* a, const A* b, const A* c, A* out, std::int64_t length,
                            Factors<A> factors);

template <Elementwise op, class A>
void compute_run(const A* a, const A* b, const A* c, A* out, std::int64_t length,
                 Factors<A> factors) {
#pragma omp simd
  for (std::int64_t i = 0; i < length; ++i)
    out[i] =
        evaluate<op>(a[i], kInputs<op> > 1 ? b[i] : a[i], kInputs<op> > 2 ? c[i] : a[i], factors);
}

// Not a template of the operation: of each one there is only the small loop above.
template <class A>
void compute(const ElementwiseArgs& args, Range elements, ComputeRun<A> run) {
  const int last = args.ndim - 1;
  const int inputs = inputs_of(args.op);
  const Factors<A> factors{static_cast<A>(args.alpha), static_cast<A>(args.beta)};
  for_each_run(args, elements, [&](const std::int64_t* offsets, std::int64_t length) {
    A buffers[4][kBlock];
    for (std::int64_t i = 0; i < length; i += kBlock) {
      const std::int64_t n = smaller(kBlock, length - i);
      const A* in[3] = {};
      for (int o = 0; o < inputs; ++o) {
        const std::int64_t stride = args.in[o].strides[last];
        in[o] = load_run<A>(args.in[o], offsets[o + 1] + i * stride, stride, n, buffers[o]);
      }
      const std::int64_t stride = args.out.strides[last];
      const std::int64_t at = offsets[0] + i * stride;
      if (args.out.dtype == dtype_of<A> && stride == 1) {
        run(in[0], in[1], in[2], pointer<A>(args.out.data) + at, n, factors);
      } else {
        run(in[0], in[1], in[2], buffers[3], n, factors);
        store_run(buffers[3], args.out, at, stride, n);
      }
    }
  });
}

void arithmetic(const ElementwiseArgs& args, Range elements) {
  with_arithmetic(args.arithmetic, [&](auto type) {
    using A = typename decltype(type)::type;
    with_operation<A>(
        args.op, [&](auto op) { compute<A>(args, elements, compute_run<decltype(op)::value, A>); });
  });
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
  arithmetic(args, elements);
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
State reduce_with(const ElementwiseArgs& loop, Range elements) {
  const int last = loop.ndim - 1;
  State state;
  for_each_run(loop, elements, [&](const std::int64_t* offsets, std::int64_t length) {
    double buffers[2][kBlock];
    for (std::int64_t i = 0; i < length; i += kBlock) {
      const std::int64_t n = smaller(kBlock, length - i);
      const double* in[2] = {buffers[0], buffers[0]};
      for (int o = 0; o < State::kOperands; ++o) {
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
  return with_reduction(args.op, [&](auto state) {
    return reduce_with<typename decltype(state)::type>(args.loop, elements).result();
  });
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

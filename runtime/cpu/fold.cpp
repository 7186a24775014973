// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/fold.hpp"

#include "tessera/runtime/cpu/run.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

// Sums and extremes of a row are formed in this many parts, which fill the vector registers.
constexpr std::int64_t kParts = 16;

template <class A, class State>
void add_run(const A* x, std::int64_t length, std::int64_t index, State* parts) {
  std::int64_t i = 0;
  for (; i + kParts <= length; i += kParts)
#pragma omp simd
    for (std::int64_t p = 0; p < kParts; ++p) parts[p].add(x[i + p], index + i + p);
  for (std::int64_t p = 0; i + p < length; ++p) parts[p].add(x[i + p], index + i + p);
}

// One element of out, from the elements of the reduced loop that begins at `offset`.
template <class A, class State>
auto fold_row(const FoldArgs& args, std::int64_t offset) {
  const Strided& in = args.kept.in[0];
  const std::int64_t stride = args.reduced.in[0].strides[args.reduced.ndim - 1];
  State parts[kParts];
  std::int64_t index = 0;
  for_each_run(args.reduced, {0, args.count}, [&](const std::int64_t* offsets, std::int64_t width) {
    A buffer[kBlock];
    for (std::int64_t i = 0; i < width; i += kBlock) {
      const std::int64_t n = smaller(kBlock, width - i);
      const A* x = load_run<A>(in, offset + offsets[1] + i * stride, stride, n, buffer);
      add_run(x, n, index, parts);
      index += n;
    }
  });
  for (std::int64_t p = 1; p < kParts; ++p) parts[0].join(parts[p]);
  return parts[0].result();
}

// At most kBlock neighbouring elements of out at once: a run of them for each reduced element.
template <class A, class State, class Result>
void fold_columns(const FoldArgs& args, std::int64_t offset, std::int64_t columns,
                  Result* results) {
  const Strided& in = args.kept.in[0];
  const std::int64_t stride = in.strides[args.kept.ndim - 1];
  const std::int64_t row_stride = args.reduced.in[0].strides[args.reduced.ndim - 1];
  State states[kBlock];
  std::int64_t index = 0;
  for_each_run(args.reduced, {0, args.count}, [&](const std::int64_t* offsets, std::int64_t rows) {
    A buffer[kBlock];
    for (std::int64_t r = 0; r < rows; ++r, ++index) {
      const A* x = load_run<A>(in, offset + offsets[1] + r * row_stride, stride, columns, buffer);
#pragma omp simd
      for (std::int64_t i = 0; i < columns; ++i) states[i].add(x[i], index);
    }
  });
  for (std::int64_t i = 0; i < columns; ++i) results[i] = states[i].result();
}

template <class A, class State>
void fold_with(const FoldArgs& args, Range elements) {
  using Result = decltype(State{}.result());
  const int last = args.kept.ndim - 1;
  const std::int64_t stride = args.kept.in[0].strides[last];
  const std::int64_t out_stride = args.kept.out.strides[last];
  for_each_run(args.kept, elements, [&](const std::int64_t* offsets, std::int64_t length) {
    Result results[kBlock];
    for (std::int64_t i = 0; i < length; i += kBlock) {
      const std::int64_t n = smaller(kBlock, length - i);
      const std::int64_t offset = offsets[1] + i * stride;
      if (args.by_column)
        fold_columns<A, State>(args, offset, n, results);
      else
        for (std::int64_t e = 0; e < n; ++e)
          results[e] = fold_row<A, State>(args, offset + e * stride);
      store_run(results, args.kept.out, offsets[0] + i * out_stride, out_stride, n);
    }
  });
}

}  // namespace

void fold(const FoldArgs& args, Range elements) {
  with_arithmetic(args.kept.arithmetic, [&](auto type) {
    using A = typename decltype(type)::type;
    if constexpr (!is_same<A, float>)
      with_fold<A>(args.op, [&](auto state) {
        fold_with<A, typename decltype(state)::type>(args, elements);
      });
  });
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

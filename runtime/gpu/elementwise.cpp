// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/elementwise.hpp"
#include "tessera/runtime/gpu/loop.hpp"
#include "tessera/runtime/gpu/reduce.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {
namespace {

template <Elementwise op, class A>
struct Compute {
  ElementwiseArgs args;
  Factors<A> factors;
  TESSERA_DEVICE void operator()(std::int64_t element) const {
    const Offsets at = offsets_of(args, element);
    A x[3] = {};
    for (int i = 0; i < kInputs<op>; ++i) x[i] = read<A>(args.in[i], at.in[i]);
    write(args.out, at.out, evaluate<op>(x[0], x[1], x[2], factors));
  }
};

void arithmetic(const ElementwiseArgs& args, Range elements) {
  with_arithmetic(args.arithmetic, [&](auto type) {
    using A = typename decltype(type)::type;
    const Factors<A> factors{static_cast<A>(args.alpha), static_cast<A>(args.beta)};
    with_operation<A>(args.op, [&](auto op) {
      for_each("elementwise", elements, Compute<decltype(op)::value, A>{args, factors});
    });
  });
}

template <class From, class To>
struct Copy {
  ElementwiseArgs args;
  TESSERA_DEVICE void operator()(std::int64_t element) const {
    const Offsets at = offsets_of(args, element);
    static_cast<To*>(args.out.data)[at.out] =
        convert<To>(static_cast<const From*>(args.in[0].data)[at.in[0]]);
  }
};

void copy_elements(const ElementwiseArgs& args, Range elements) {
  if (args.in[0].dtype == args.out.dtype)
    return with_bits(args.out.dtype, [&](auto type) {
      using U = typename decltype(type)::type;
      for_each("copy", elements, Copy<U, U>{args});
    });
  with_any(args.in[0].dtype, [&](auto from) {
    with_any(args.out.dtype, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      if constexpr (!is_same<From, To>) for_each("copy", elements, Copy<From, To>{args});
    });
  });
}

template <class T>
struct Fill {
  ElementwiseArgs args;
  T value;
  TESSERA_DEVICE void operator()(std::int64_t element) const {
    static_cast<T*>(args.out.data)[offsets_of(args, element).out] = value;
  }
};

void fill_elements(const ElementwiseArgs& args, Range elements) {
  with_any(args.out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for_each("fill", elements, Fill<T>{args, convert<T>(args.alpha)});
  });
}

// Tiles of the last two dims, where `in` has unit stride in the rows and `out` in the columns.
template <class U>
struct Transpose {
  ElementwiseArgs args;
  std::int64_t down, across;  // tiles of a matrix

  // The first element of a tile, and how much of the matrix is left there.
  struct Corner {
    std::int64_t from, to, rows, columns;
  };
  TESSERA_DEVICE Corner corner(std::int64_t tile) const {
    const int last = args.ndim - 1;
    std::int64_t rest = tile / across;
    const std::int64_t column = (tile - rest * across) * kTile;
    const std::int64_t row = rest % down * kTile;
    rest /= down;
    Corner at{row + column * args.in[0].strides[last], column + row * args.out.strides[last - 1],
              args.sizes[last - 1] - row, args.sizes[last] - column};
    for (int d = last - 2; d >= 0; --d) {
      const std::int64_t index = rest % args.sizes[d];
      rest /= args.sizes[d];
      at.from += index * args.in[0].strides[d];
      at.to += index * args.out.strides[d];
    }
    return at;
  }
  // Loaded along the rows of the matrix, stored along its columns.
  TESSERA_DEVICE void load(const Corner& at, int column, int row, U& value) const {
    if (row < at.rows && column < at.columns)
      value = static_cast<const U*>(
          args.in[0].data)[at.from + row + column * args.in[0].strides[args.ndim - 1]];
  }
  TESSERA_DEVICE void store(const Corner& at, int row, int column, U value) const {
    if (row < at.rows && column < at.columns)
      static_cast<U*>(args.out.data)[at.to + column + row * args.out.strides[args.ndim - 2]] =
          value;
  }
};

template <class S>
struct Scalar {
  using State = S;
  ElementwiseArgs loop;
  State* result;
  TESSERA_DEVICE void add(State& own, std::int64_t, std::int64_t element) const {
    const Offsets at = offsets_of(loop, element);
    const double a = read<double>(loop.in[0], at.in[0]);
    own.add(a, State::kOperands == 2 ? read<double>(loop.in[1], at.in[1]) : a);
  }
  TESSERA_DEVICE void finish(std::int64_t, const State& state) const { *result = state; }
};

template <class State>
State reduce_all(const ElementwiseArgs& loop, std::int64_t count) {
  const Scratch<State> result(1);
  reduce_rows("reduce", {0, 1}, count, Width::block, Scalar<State>{loop, result.data()});
  State state;
  driver::copy_async(&state, result.data(), sizeof state, stream());
  driver::synchronize(stream());
  return state;
}

}  // namespace

void elementwise(const ElementwiseArgs& args, Range elements) {
  if (args.op == Elementwise::fill) return fill_elements(args, elements);
  if (args.op == Elementwise::copy) return copy_elements(args, elements);
  arithmetic(args, elements);
}

void transpose(const ElementwiseArgs& args, Range) {
  const std::int64_t across = (args.sizes[args.ndim - 1] + kTile - 1) / kTile;
  const std::int64_t down = (args.sizes[args.ndim - 2] + kTile - 1) / kTile;
  std::int64_t tiles = down * across;
  for (int d = 0; d < args.ndim - 2; ++d) tiles *= args.sizes[d];
  with_bits(args.out.dtype, [&](auto type) {
    using U = typename decltype(type)::type;
    for_each_tile<U>("transpose", tiles, Transpose<U>{args, down, across});
  });
}

// A device is given all elements at once (runtime/ops.cpp).
Reduced reduce(const ReduceArgs& args, Range elements) {
  return with_reduction(args.op, [&](auto state) {
    return reduce_all<typename decltype(state)::type>(args.loop, elements.end).result();
  });
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE

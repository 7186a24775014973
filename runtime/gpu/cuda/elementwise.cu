// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/cuda/loop.cuh"
#include "tessera/runtime/kernels/elementwise.hpp"

namespace tessera::gpu_cuda {
namespace {

template <Elementwise op, class A>
__global__ void compute(ElementwiseArgs args, Range elements, Factors<A> factors) {
  for (std::int64_t e = elements.begin + first_item(); e < elements.end; e += item_step()) {
    const Offsets at = offsets_of(args, e);
    A x[3] = {};
    for (int i = 0; i < kInputs<op>; ++i) x[i] = read<A>(args.in[i], at.in[i]);
    write(args.out, at.out, evaluate<op>(x[0], x[1], x[2], factors));
  }
}

template <class From, class To>
__global__ void copy_as(ElementwiseArgs args, Range elements) {
  for (std::int64_t e = elements.begin + first_item(); e < elements.end; e += item_step()) {
    const Offsets at = offsets_of(args, e);
    static_cast<To*>(args.out.data)[at.out] =
        convert<To>(static_cast<const From*>(args.in[0].data)[at.in[0]]);
  }
}

template <class T>
__global__ void fill_with(ElementwiseArgs args, Range elements, T value) {
  for (std::int64_t e = elements.begin + first_item(); e < elements.end; e += item_step())
    static_cast<T*>(args.out.data)[offsets_of(args, e).out] = value;
}

void arithmetic(const ElementwiseArgs& args, Range elements) {
  with_arithmetic(args.arithmetic, [&](auto type) {
    using A = typename decltype(type)::type;
    const Factors<A> factors{static_cast<A>(args.alpha), static_cast<A>(args.beta)};
    with_operation<A>(args.op, [&](auto op) {
      launch("elementwise", compute<decltype(op)::value, A>, grid(elements.end - elements.begin),
             kThreads, args, elements, factors);
    });
  });
}

// Also right for equal types: no conversion, the bits move.
void copy_elements(const ElementwiseArgs& args, Range elements) {
  with_any(args.in[0].dtype, [&](auto from) {
    with_any(args.out.dtype, [&](auto to) {
      using From = typename decltype(from)::type;
      using To = typename decltype(to)::type;
      launch("copy", copy_as<From, To>, grid(elements.end - elements.begin), kThreads, args,
             elements);
    });
  });
}

void fill_elements(const ElementwiseArgs& args, Range elements) {
  with_any(args.out.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch("fill", fill_with<T>, grid(elements.end - elements.begin), kThreads, args, elements,
           convert<T>(args.alpha));
  });
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;

// The last two dims in tiles through shared memory, so that reads and writes are both coalesced.
template <class T>
__global__ void transpose_tiles(ElementwiseArgs args, std::int64_t tiles, std::int64_t tiles_j,
                                std::int64_t tiles_i) {
  alignas(std::int64_t)
      __shared__ unsigned char storage[kTile * (kTile + 1) * sizeof(std::int64_t)];
  T* tile = reinterpret_cast<T*>(storage);
  const int i_dim = args.ndim - 1;
  const int j_dim = args.ndim - 2;
  for (std::int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const std::int64_t i0 = t % tiles_i * kTile;
    const std::int64_t j0 = t / tiles_i % tiles_j * kTile;
    const T* from = static_cast<const T*>(args.in[0].data);
    T* to = static_cast<T*>(args.out.data);
    std::int64_t rest = t / (tiles_i * tiles_j);
    for (int d = j_dim - 1; d >= 0; --d) {
      from += rest % args.sizes[d] * args.in[0].strides[d];
      to += rest % args.sizes[d] * args.out.strides[d];
      rest /= args.sizes[d];
    }
    for (int s = threadIdx.y; s < kTile; s += kTileRows)
      if (i0 + s < args.sizes[i_dim] && j0 + threadIdx.x < args.sizes[j_dim])
        tile[s * (kTile + 1) + threadIdx.x] =
            from[(i0 + s) * args.in[0].strides[i_dim] + j0 + threadIdx.x];
    __syncthreads();
    for (int s = threadIdx.y; s < kTile; s += kTileRows)
      if (j0 + s < args.sizes[j_dim] && i0 + threadIdx.x < args.sizes[i_dim])
        to[(j0 + s) * args.out.strides[j_dim] + i0 + threadIdx.x] =
            tile[threadIdx.x * (kTile + 1) + s];
    __syncthreads();
  }
}

template <class State>
__global__ void reduce_blocks(ElementwiseArgs loop, Range elements, bool two, State* results) {
  State own;
  for (std::int64_t e = elements.begin + first_item(); e < elements.end; e += item_step()) {
    const Offsets at = offsets_of(loop, e);
    const double a = read<double>(loop.in[0], at.in[0]);
    own.add(a, two ? read<double>(loop.in[1], at.in[1]) : a);
  }
  const State all = join_block(own);
  if (threadIdx.x == 0) results[blockIdx.x] = all;
}

template <class State>
State reduce_with(const ElementwiseArgs& loop, bool two, Range elements) {
  constexpr unsigned most = 512;
  const unsigned blocks = std::min(grid(elements.end - elements.begin), most);
  State partial[most];
  const Scratch<State> results(blocks);
  launch("reduce", reduce_blocks<State>, blocks, kThreads, loop, elements, two, results.data());
  driver::copy_async(partial, results.data(), blocks * sizeof(State), stream());
  driver::synchronize(stream());
  State total;
  for (unsigned b = 0; b < blocks; ++b) total.join(partial[b]);
  return total;
}

}  // namespace

void elementwise(const ElementwiseArgs& args, Range elements) {
  if (args.op == Elementwise::fill) return fill_elements(args, elements);
  if (args.op == Elementwise::copy) return copy_elements(args, elements);
  arithmetic(args, elements);
}

void transpose(const ElementwiseArgs& args, Range) {
  const std::int64_t tiles_i = (args.sizes[args.ndim - 1] + kTile - 1) / kTile;
  const std::int64_t tiles_j = (args.sizes[args.ndim - 2] + kTile - 1) / kTile;
  std::int64_t tiles = tiles_i * tiles_j;
  for (int d = 0; d < args.ndim - 2; ++d) tiles *= args.sizes[d];
  with_any(args.out.dtype, [&](auto type) {
    launch("transpose", transpose_tiles<typename decltype(type)::type>, grid(tiles, 1),
           dim3(kTile, kTileRows), args, tiles, tiles_j, tiles_i);
  });
}

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

}  // namespace tessera::gpu_cuda

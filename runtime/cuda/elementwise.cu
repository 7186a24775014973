// SPDX-License-Identifier: MIT
#include "tessera/runtime/cuda/launch.cuh"
#include "tessera/runtime/kernels/elementwise.hpp"

namespace tessera::cuda {
namespace {

using namespace kernels_cuda;

struct Offsets {
  std::int64_t out;
  std::int64_t in[2];
};

__device__ Offsets offsets_of(const ElementwiseArgs& args, std::int64_t element) {
  Offsets at{0, {0, 0}};
  for (int d = args.ndim - 1; d >= 0; --d) {
    const std::int64_t rest = d > 0 ? element / args.sizes[d] : 0;
    const std::int64_t index = element - rest * args.sizes[d];
    element = rest;
    at.out += index * args.out.strides[d];
    at.in[0] += index * args.in[0].strides[d];
    at.in[1] += index * args.in[1].strides[d];
  }
  return at;
}

template <class A>
__device__ A read(const Strided& operand, std::int64_t at) {
  if (operand.dtype == DType::f64) return convert<A>(static_cast<const double*>(operand.data)[at]);
  if (operand.dtype == DType::f32) return convert<A>(static_cast<const float*>(operand.data)[at]);
  return convert<A>(static_cast<const bf16*>(operand.data)[at]);
}

template <class A>
__device__ void write(const Strided& operand, std::int64_t at, A value) {
  if (operand.dtype == DType::f64)
    static_cast<double*>(operand.data)[at] = convert<double>(value);
  else if (operand.dtype == DType::f32)
    static_cast<float*>(operand.data)[at] = convert<float>(value);
  else
    static_cast<bf16*>(operand.data)[at] = convert<bf16>(value);
}

__device__ std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::int64_t item_step() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

template <class A, class Op>
__global__ void compute(ElementwiseArgs args, Range elements, Op op) {
  for (std::int64_t e = elements.begin + first_item(); e < elements.end; e += item_step()) {
    const Offsets at = offsets_of(args, e);
    const A a = read<A>(args.in[0], at.in[0]);
    const A b = Op::inputs == 2 ? read<A>(args.in[1], at.in[1]) : a;
    write(args.out, at.out, op(a, b));
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

template <class A, class Op>
void start(const ElementwiseArgs& args, Range elements, const Op& op) {
  launch("elementwise", compute<A, Op>, grid(elements.end - elements.begin), kThreads, args,
         elements, op);
}

template <class A>
void arithmetic(const ElementwiseArgs& args, Range elements) {
  const A alpha = static_cast<A>(args.alpha);
  const A beta = static_cast<A>(args.beta);
  if (args.op == Elementwise::scale) return start<A>(args, elements, Scale<A>{alpha});
  if (args.op == Elementwise::add) return start<A>(args, elements, AddScaled<A>{alpha, beta});
  if (args.op == Elementwise::multiply) return start<A>(args, elements, Multiply<A>{});
  start<A>(args, elements, Maximum<A>{});
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
  alignas(State) __shared__ unsigned char storage[kThreads * sizeof(State)];
  State* states = reinterpret_cast<State*>(storage);
  State own;
  for (std::int64_t e = elements.begin + first_item(); e < elements.end; e += item_step()) {
    const Offsets at = offsets_of(loop, e);
    const double a = read<double>(loop.in[0], at.in[0]);
    own.add(a, two ? read<double>(loop.in[1], at.in[1]) : a);
  }
  states[threadIdx.x] = own;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) states[threadIdx.x].join(states[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) results[blockIdx.x] = states[0];
}

template <class State>
State reduce_with(const ElementwiseArgs& loop, bool two, Range elements) {
  constexpr unsigned most = 512;
  const unsigned blocks = std::min(grid(elements.end - elements.begin), most);
  State partial[most];
  const Scratch<State> results(blocks);
  launch("reduce", reduce_blocks<State>, blocks, kThreads, loop, elements, two, results.data());
  check(cudaMemcpyAsync(partial, results.data(), blocks * sizeof(State), cudaMemcpyDeviceToHost,
                        stream()),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  State total;
  for (unsigned b = 0; b < blocks; ++b) total.join(partial[b]);
  return total;
}

}  // namespace

void elementwise(const ElementwiseArgs& args, Range elements) {
  if (args.op == Elementwise::fill) return fill_elements(args, elements);
  if (args.op == Elementwise::copy) return copy_elements(args, elements);
  const bool wide = args.out.dtype == DType::f64 || args.in[0].dtype == DType::f64 ||
                    args.in[1].dtype == DType::f64;
  wide ? arithmetic<double>(args, elements) : arithmetic<float>(args, elements);
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

}  // namespace tessera::cuda

// SPDX-License-Identifier: MIT
// How CUDA kernels address the elements of a loop (kernels/table.hpp).
#pragma once

#include "tessera/runtime/gpu/cuda/launch.cuh"

namespace tessera::gpu_cuda {

struct Offsets {
  std::int64_t out;
  std::int64_t in[3];
};

inline __device__ Offsets offsets_of(const ElementwiseArgs& args, std::int64_t element) {
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

// with_any (kernels/scalar.hpp) of the device.
template <class Body>
__device__ void with_element(DType dtype, Body&& body) {
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
__device__ A read(const Strided& operand, std::int64_t at) {
  A value{};
  with_element(operand.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    value = convert<A>(static_cast<const T*>(operand.data)[at]);
  });
  return value;
}

template <class A>
__device__ void write(const Strided& operand, std::int64_t at, A value) {
  with_element(operand.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    static_cast<T*>(operand.data)[at] = convert<T>(value);
  });
}

inline __device__ std::int64_t first_item() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
inline __device__ std::int64_t item_step() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

// The states of a block's threads joined, in thread 0; all of its threads call this.
template <class State>
__device__ State join_block(const State& own) {
  alignas(State) __shared__ unsigned char storage[kThreads * sizeof(State)];
  State* states = reinterpret_cast<State*>(storage);
  states[threadIdx.x] = own;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) states[threadIdx.x].join(states[threadIdx.x + half]);
  }
  return states[threadIdx.x];
}

}  // namespace tessera::gpu_cuda

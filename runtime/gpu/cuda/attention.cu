// SPDX-License-Identifier: MIT
// The softmax of attention. Forward a warp has a row of keys; backward a thread has a query and a
// key and walks the groups, which may share their element of dbias.
#include "tessera/runtime/gpu/cuda/loop.cuh"
#include "tessera/runtime/kernels/attention.hpp"
#include "tessera/runtime/kernels/elementwise.hpp"

namespace tessera::gpu_cuda {
namespace {

constexpr int kWarp = 32;

template <class A>
__device__ A& at(const Strided& x, std::int64_t group, std::int64_t query, std::int64_t last = 0) {
  return static_cast<A*>(x.data)[group * x.strides[0] + query * x.strides[1] + last];
}
template <class A>
__device__ A added(const SoftmaxArgs& args, std::int64_t g, std::int64_t j, std::int64_t k) {
  A logit = at<A>(args.logits, g, j, k);
  for (const SoftmaxArgs::Term& term : args.terms) {
    const Strided& x = term.values;
    if (x.data != nullptr)
      logit += Term<A>(term)(read<A>(x, g * x.strides[0] + j * x.strides[1] + k));
  }
  return logit;
}

template <class A>
__device__ A warp_maximum(A value) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    value = maximum(__shfl_xor_sync(~0u, value, step), value);
  return value;
}
template <class A>
__device__ A warp_sum(A value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

template <class A>
__global__ void softmax_rows(SoftmaxArgs args, Range rows) {
  const int lane = threadIdx.x % kWarp;
  for (std::int64_t r = rows.begin + first_item() / kWarp; r < rows.end; r += item_step() / kWarp) {
    const std::int64_t g = r / args.queries;
    const std::int64_t j = r % args.queries;
    const A before = args.first ? A(0) : at<A>(args.maximum, g, j);
    A top = args.first ? -static_cast<A>(__builtin_huge_val()) : before;
    for (std::int64_t k = lane; k < args.keys; k += kWarp) {
      const A logit = added<A>(args, g, j, k);
      at<A>(args.logits, g, j, k) = logit;
      top = maximum(logit, top);
    }
    top = warp_maximum(top);
    A sum = 0;
    for (std::int64_t k = lane; k < args.keys; k += kWarp) {
      const A weight = exp_of_negative(at<A>(args.logits, g, j, k) - top);
      at<A>(args.logits, g, j, k) = weight;
      sum += weight;
    }
    sum = warp_sum(sum);
    const A rescale = args.first ? A(0) : exp_of_negative(before - top);
    if (!args.first)
      for (std::int64_t c = lane; c < args.channels; c += kWarp)
        at<A>(args.weighted, g, j, c) *= rescale;
    if (lane == 0) {
      A& total = at<A>(args.sum, g, j);
      total = args.first ? sum : rescale * total + sum;
      at<A>(args.maximum, g, j) = top;
    }
  }
}

template <class A>
__global__ void gradients(SoftmaxArgs args, Range queries) {
  const std::int64_t count = (queries.end - queries.begin) * args.keys;
  for (std::int64_t e = first_item(); e < count; e += item_step()) {
    const std::int64_t j = queries.begin + e / args.keys;
    const std::int64_t k = e % args.keys;
    for (std::int64_t g = 0; g < args.groups; ++g) {
      A& logit = at<A>(args.logits, g, j, k);
      A& dweight = at<A>(args.dweights, g, j, k);
      const A p = weight(added<A>(args, g, j, k), at<A>(args.maximum, g, j), at<A>(args.sum, g, j));
      const A da = logit_gradient(p, dweight, at<A>(args.d, g, j));
      logit = p;
      dweight = da;
      if (args.dbias.data != nullptr) at<A>(args.dbias, g, j, k) += da;
    }
  }
}

}  // namespace

void softmax_tile(const SoftmaxArgs& args, Range rows) {
  launch("softmax_tile", args.dtype == DType::f64 ? softmax_rows<double> : softmax_rows<float>,
         grid(rows.end - rows.begin, kThreads / kWarp), kThreads, args, rows);
}

void softmax_tile_backward(const SoftmaxArgs& args, Range queries) {
  launch("softmax_tile_backward", args.dtype == DType::f64 ? gradients<double> : gradients<float>,
         grid((queries.end - queries.begin) * args.keys), kThreads, args, queries);
}

}  // namespace tessera::gpu_cuda

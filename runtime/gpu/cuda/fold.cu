// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/cuda/loop.cuh"
#include "tessera/runtime/kernels/fold.hpp"

namespace tessera::gpu_cuda {
namespace {

template <class A, class State>
__device__ State fold_some(const FoldArgs& args, std::int64_t offset, std::int64_t first,
                           std::int64_t step) {
  State state;
  for (std::int64_t r = first; r < args.count; r += step)
    state.add(read<A>(args.kept.in[0], offset + offsets_of(args.reduced, r).in[0]), r);
  return state;
}

// A thread for each element of out: neighbours read neighbours.
template <class A, class State>
__global__ void fold_columns(FoldArgs args, Range elements) {
  for (std::int64_t e = elements.begin + first_item(); e < elements.end; e += item_step()) {
    const Offsets at = offsets_of(args.kept, e);
    write(args.kept.out, at.out, fold_some<A, State>(args, at.in[0], 0, 1).result());
  }
}

// A block for each.
template <class A, class State>
__global__ void fold_rows(FoldArgs args, Range elements) {
  for (std::int64_t e = elements.begin + blockIdx.x; e < elements.end; e += gridDim.x) {
    const Offsets at = offsets_of(args.kept, e);
    const State all = join_block(fold_some<A, State>(args, at.in[0], threadIdx.x, blockDim.x));
    if (threadIdx.x == 0) write(args.kept.out, at.out, all.result());
    __syncthreads();
  }
}

}  // namespace

void fold(const FoldArgs& args, Range elements) {
  const std::int64_t count = elements.end - elements.begin;
  with_arithmetic(args.kept.arithmetic, [&](auto type) {
    using A = typename decltype(type)::type;
    if constexpr (!is_same<A, float>)
      with_fold<A>(args.op, [&](auto state) {
        using State = typename decltype(state)::type;
        if (args.by_column)
          launch("fold", fold_columns<A, State>, grid(count), kThreads, args, elements);
        else
          launch("fold", fold_rows<A, State>, grid(count, 1), kThreads, args, elements);
      });
  });
}

}  // namespace tessera::gpu_cuda

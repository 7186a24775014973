// SPDX-License-Identifier: MIT
// A block for each row of out, its threads over the features.
#include "tessera/runtime/gpu/cuda/launch.cuh"

namespace tessera::gpu_cuda {
namespace {

template <class T>
__global__ void gather(IndexedRowsArgs args, Range rows) {
  for (std::int64_t k = rows.begin + blockIdx.x; k < rows.end; k += gridDim.x) {
    const std::int64_t row = args.index[k * args.index_stride];
    const T* from = static_cast<const T*>(args.src) + (row < 0 ? 0 : row) * args.src_stride;
    T* to = static_cast<T*>(args.out) + k * args.out_stride;
    for (std::int64_t f = threadIdx.x; f < args.features; f += blockDim.x)
      to[f] = row < 0 ? T{} : from[f];
  }
}

template <class From, class To>
__global__ void scatter_add(IndexedRowsArgs args, Range rows) {
  for (std::int64_t row = rows.begin + blockIdx.x; row < rows.end; row += gridDim.x) {
    To* to = static_cast<To*>(args.out) + row * args.out_stride;
    for (std::int64_t k = 0; k < args.count; ++k) {
      if (args.index[k * args.index_stride] != row) continue;
      const From* from = static_cast<const From*>(args.src) + k * args.src_stride;
      for (std::int64_t f = threadIdx.x; f < args.features; f += blockDim.x)
        to[f] = static_cast<To>(to[f] + load(from[f]));
    }
  }
}

}  // namespace

void gather_rows(const IndexedRowsArgs& args, Range rows) {
  with_any(args.out_dtype, [&](auto type) {
    launch("gather_rows", gather<typename decltype(type)::type>, grid(rows.end - rows.begin, 1),
           kThreads, args, rows);
  });
}

void scatter_add_rows(const IndexedRowsArgs& args, Range rows) {
  with_floating(args.src_dtype, [&](auto src) {
    with_floating(args.out_dtype, [&](auto out) {
      using From = typename decltype(src)::type;
      using To = typename decltype(out)::type;
      if constexpr (!is_same<To, bf16>)
        launch("scatter_add_rows", scatter_add<From, To>, grid(rows.end - rows.begin, 1), kThreads,
               args, rows);
    });
  });
}

}  // namespace tessera::gpu_cuda

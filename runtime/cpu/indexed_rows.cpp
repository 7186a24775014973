// SPDX-License-Identifier: MIT
#include "tessera/runtime/cpu/run.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

template <class From, class To>
void add_row(const From* from, To* to, std::int64_t features) {
#pragma omp simd
  for (std::int64_t f = 0; f < features; ++f) to[f] = static_cast<To>(to[f] + load(from[f]));
}

}  // namespace

void gather_rows(const IndexedRowsArgs& args, Range rows) {
  with_bits(args.out_dtype, [&](auto type) {
    using U = typename decltype(type)::type;
    for (std::int64_t k = rows.begin; k < rows.end; ++k) {
      const std::int64_t row = args.index[k * args.index_stride];
      U* to = pointer<U>(args.out) + k * args.out_stride;
      if (row < 0) {
        for (std::int64_t f = 0; f < args.features; ++f) to[f] = 0;
      } else {
        const U* from = pointer<U>(args.src) + row * args.src_stride;
        for (std::int64_t f = 0; f < args.features; ++f) to[f] = from[f];
      }
    }
  });
}

// Threads own rows of out and each reads all indices, so that every sum has its fixed order.
void scatter_add_rows(const IndexedRowsArgs& args, Range rows) {
  with_floating(args.src_dtype, [&](auto src) {
    with_floating(args.out_dtype, [&](auto out) {
      using From = typename decltype(src)::type;
      using To = typename decltype(out)::type;
      if constexpr (!is_same<To, bf16>)
        for (std::int64_t k = 0; k < args.count; ++k) {
          const std::int64_t row = args.index[k * args.index_stride];
          if (row < rows.begin || row >= rows.end) continue;
          add_row(pointer<From>(args.src) + k * args.src_stride,
                  pointer<To>(args.out) + row * args.out_stride, args.features);
        }
    });
  });
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

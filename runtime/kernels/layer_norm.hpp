// SPDX-License-Identifier: MIT
// Operands of the layer norm, and its bodies: one element or one row's statistics each.
#pragma once

#include "tessera/runtime/kernels/math.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

template <class T>
struct View {
  T* data;
  std::int64_t row_stride;
  std::int64_t channel_stride;
  TESSERA_HD T& at(std::int64_t row, std::int64_t channel) const {
    return data[row * row_stride + channel * channel_stride];
  }
};
template <class T>
inline View<T> view(const Rows& rows) {
  return {static_cast<T*>(rows.data), rows.row_stride, rows.channel_stride};
}
// Neighbouring rows are neighbours in memory.
inline bool by_row(const Rows& x) {
  return x.row_stride == 1 && x.channel_stride != 1;
}

template <class T>
struct LayerNorm {
  using A = Acc<T>;
  View<T> x, y;
  std::int64_t channels;
  A eps;
  bool given;
  const A* weight;
  const A* bias;
  A* mean;
  A* rstd;

  explicit LayerNorm(const LayerNormArgs& args)
      : x(view<T>(args.x)),
        y(view<T>(args.y)),
        channels(args.channels),
        eps(static_cast<A>(args.eps)),
        given(args.given_statistics),
        weight(static_cast<const A*>(args.weight)),
        bias(static_cast<const A*>(args.bias)),
        mean(static_cast<A*>(args.mean)),
        rstd(static_cast<A*>(args.rstd)) {}
};

template <class T>
struct LayerNormBackward {
  using A = Acc<T>;
  View<T> dy, x, dx;
  std::int64_t channels;
  const A* weight;
  const A* mean;
  const A* rstd;
  A* dweight;
  A* dbias;

  explicit LayerNormBackward(const LayerNormBackwardArgs& args)
      : dy(view<T>(args.dy)),
        x(view<T>(args.x)),
        dx(view<T>(args.dx)),
        channels(args.channels),
        weight(static_cast<const A*>(args.weight)),
        mean(static_cast<const A*>(args.mean)),
        rstd(static_cast<const A*>(args.rstd)),
        dweight(static_cast<A*>(args.dweight)),
        dbias(static_cast<A*>(args.dbias)) {}
};

template <class A>
struct RowStatistics {
  A mean;
  A rstd;
  TESSERA_HD A normalized(A x) const { return (x - mean) * rstd; }
};

template <class A>
TESSERA_HD inline A reciprocal_std(A sum_of_squares, A channels, A eps) {
  return A(1) / square_root(sum_of_squares / channels + eps);
}

// Means over the channels of g = dy * weight and of g * xh.
template <class A>
struct RowGradient {
  A g;
  A g_xh;
};

template <class A>
TESSERA_HD inline A layer_norm_dx(A g, A xh, RowGradient<A> mean, A rstd) {
  return rstd * (g - mean.g - xh * mean.g_xh);
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

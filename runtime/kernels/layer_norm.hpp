// SPDX-License-Identifier: MIT
// Bodies of the layer norm, one element or one row's statistics each.
#pragma once

#include "tessera/runtime/kernels/math.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

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

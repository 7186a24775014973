// SPDX-License-Identifier: MIT
// Bodies of the softmax of attention, one element each.
#pragma once

#include "tessera/runtime/kernels/math.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

// What is added to logits. The order is the caller's: next to 1e9 it matters.
template <class A>
struct Terms {
  A infinity;
  bool mask_first;
  TESSERA_HD A added(A logit, A mask, A bias) const {
    const A masked = infinity * (mask - A(1));
    return mask_first ? (logit + masked) + bias : (logit + bias) + masked;
  }
};

template <class A>
struct WeightGradient {
  A weight;
  A logit;
};
// maximum and log_sum apart: their sum would lose the second one next to -1e9.
template <class A>
TESSERA_HD inline WeightGradient<A> weight_gradient(A logit, A maximum, A log_sum, A dweight, A d) {
  const A weight = exp((logit - maximum) - log_sum);
  return {weight, weight * (dweight - d)};
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

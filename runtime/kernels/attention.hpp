// SPDX-License-Identifier: MIT
// Bodies of the softmax of attention, one element each.
#pragma once

#include "tessera/runtime/kernels/math.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

template <class A>
TESSERA_HD inline A* at(const Strided& x, std::int64_t group, std::int64_t query) {
  return static_cast<A*>(x.data) + group * x.strides[0] + query * x.strides[1];
}

// What a mask or a bias adds to a logit.
template <class A>
struct Term {
  A factor, shift;
  TESSERA_HD explicit Term(const SoftmaxArgs::Term& term)
      : factor(static_cast<A>(term.factor)), shift(static_cast<A>(term.shift)) {}
  TESSERA_HD A operator()(A value) const { return factor * (value - shift); }
};

// maximum and log_sum apart: their sum would lose the second one next to -1e9.
template <class A>
TESSERA_HD inline A weight(A logit, A maximum, A log_sum) {
  return exp_of_negative((logit - maximum) - log_sum);
}
// From p = softmax(a) and the gradient of p; d: that of the output times the output.
template <class A>
TESSERA_HD inline A logit_gradient(A weight, A dweight, A d) {
  return weight * (dweight - d);
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

// SPDX-License-Identifier: MIT
// Bodies of the elementwise operations and of the scalar reductions.
#pragma once

#include "tessera/runtime/kernels/scalar.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

template <class A>
struct Scale {
  static constexpr int inputs = 1;
  A alpha;
  TESSERA_HD A operator()(A a, A) const { return alpha * a; }
};
template <class A>
struct AddScaled {
  static constexpr int inputs = 2;
  A alpha;
  A beta;
  TESSERA_HD A operator()(A a, A b) const { return alpha * a + beta * b; }
};
template <class A>
struct Multiply {
  static constexpr int inputs = 2;
  TESSERA_HD A operator()(A a, A b) const { return a * b; }
};
// A NaN on either side is the result.
template <class A>
struct Maximum {
  static constexpr int inputs = 2;
  TESSERA_HD A operator()(A a, A b) const { return a > b || a != a ? a : b; }
};

// Reductions: `add` brings in one pair of elements, `join` another partial result.
struct MaxAbs {
  double value = 0;
  TESSERA_HD void add(double a, double) { join({a < 0 ? -a : a}); }
  TESSERA_HD void join(MaxAbs other) { value = Maximum<double>{}(other.value, value); }
};
struct SumOfSquares {
  double value = 0;
  TESSERA_HD void add(double a, double) { value += a * a; }
  TESSERA_HD void join(SumOfSquares other) { value += other.value; }
};
// 1 as soon as one element is not finite: only for those a - a differs from 0.
struct NotFinite {
  double value = 0;
  TESSERA_HD void add(double a, double) { value = a - a == 0 ? value : 1; }
  TESSERA_HD void join(NotFinite other) { value = other.value > value ? other.value : value; }
};
struct MaxDifference {
  MaxAbs difference;
  MaxAbs reference;
  TESSERA_HD void add(double a, double b) {
    difference.add(a - b, 0);
    reference.add(b, 0);
  }
  TESSERA_HD void join(MaxDifference other) {
    difference.join(other.difference);
    reference.join(other.reference);
  }
};

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

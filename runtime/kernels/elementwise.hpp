// SPDX-License-Identifier: MIT
// Bodies of the elementwise operations and of the scalar reductions.
#pragma once

#include "tessera/runtime/kernels/math.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

// A NaN on either side is the result.
template <class A>
TESSERA_HD inline A maximum(A a, A b) {
  return a > b || a != a ? a : b;
}
template <class A>
TESSERA_HD inline A minimum(A a, A b) {
  return a < b || a != a ? a : b;
}

// What arithmetic A can compute.
template <Elementwise op, class A>
inline constexpr bool is_computed_in = is_same<A, std::int64_t> ? has_integer_form(op)
                                                                : op != Elementwise::bit_and;

// A constant: CUDA code may not call the function.
template <Elementwise op>
inline constexpr int kInputs = inputs_of(op);

template <class A>
struct Factors {
  A alpha;
  A beta;
};

template <Elementwise op, class A>
TESSERA_HD inline A evaluate_unary(A x) {
  using E = Elementwise;
  constexpr bool whole = is_same<A, std::int64_t>;
  if constexpr (op == E::cos)
    return cosine(x);
  else if constexpr (op == E::sin)
    return sine(x);
  else if constexpr (op == E::relu)
    return x < A(0) ? A(0) : x;
  else if constexpr (op == E::round && whole)
    return x;
  else if constexpr (op == E::round)
    return round_to_even(x);
  else if constexpr (op == E::log)
    return logarithm(x);
  else if constexpr (op == E::exp)
    return exp(x);
  else if constexpr (op == E::abs && whole)
    return x < 0 ? -x : x;
  else if constexpr (op == E::abs)
    return absolute(x);
  else if constexpr (op == E::sign)
    return static_cast<A>((x > A(0)) - (x < A(0)));
  else if constexpr (op == E::sigmoid)
    return sigmoid(x).value;
  else if constexpr (op == E::sqrt)
    return square_root(x);
  else if constexpr (op == E::logical_not)
    return static_cast<A>(x == A(0));
  else
    return static_cast<A>(x > A(0));  // step
}

template <Elementwise op, class A>
TESSERA_HD inline A evaluate_binary(A a, A b, Factors<A> factors) {
  using E = Elementwise;
  if constexpr (op == E::add)
    return factors.alpha * a + factors.beta * b;
  else if constexpr (op == E::multiply)
    return a * b;
  else if constexpr (op == E::divide)
    return a / b;
  else if constexpr (op == E::maximum)
    return maximum(a, b);
  else if constexpr (op == E::minimum)
    return minimum(a, b);
  else if constexpr (op == E::power)
    return power(a, b);
  else if constexpr (op == E::equal)
    return static_cast<A>(a == b);
  else if constexpr (op == E::less)
    return static_cast<A>(a < b);
  else if constexpr (op == E::less_equal)
    return static_cast<A>(a <= b);
  else if constexpr (op == E::logical_and)
    return static_cast<A>((a != A(0)) & (b != A(0)));
  else
    return a & b;
}

// One element of out from those of in[]; of these the operation reads kInputs<op>.
template <Elementwise op, class A>
TESSERA_HD inline A evaluate(A a, A b, A c, Factors<A> factors) {
  if constexpr (op == Elementwise::scale)
    return factors.alpha * a;
  else if constexpr (kInputs<op> == 1)
    return evaluate_unary<op>(a);
  else if constexpr (kInputs<op> == 2)
    return evaluate_binary<op>(a, b, factors);
  else
    return a != A(0) ? b : c;
}

// Calls body(Operation<op>{}) with the operation of `args` as a constant.
template <Elementwise op>
struct Operation {
  static constexpr Elementwise value = op;
};
template <class A, Elementwise op = Elementwise::scale, class Body>
inline void with_operation(Elementwise wanted, Body&& body) {
  if constexpr (is_computed_in<op, A>) {
    if (wanted == op) return body(Operation<op>{});
  }
  if constexpr (op != kLastElementwise)
    with_operation<A, static_cast<Elementwise>(static_cast<int>(op) + 1)>(
        wanted, static_cast<Body&&>(body));
}

// Calls body(Type<A>{}) with the type of the arithmetic.
template <class Body>
inline void with_arithmetic(DType dtype, Body&& body) {
  if (dtype == DType::i64) return body(Type<std::int64_t>{});
  if (dtype == DType::f64) return body(Type<double>{});
  body(Type<float>{});
}

// Scalar reductions: `add` brings in one pair of elements, of which `kOperands` are read, `join`
// another partial result.
struct MaxAbs {
  static constexpr int kOperands = 1;
  double value = 0;
  TESSERA_HD void add(double a, double) { join({a < 0 ? -a : a}); }
  TESSERA_HD void join(MaxAbs other) { value = maximum(other.value, value); }
  Reduced result() const { return {{value, 0}}; }
};
struct SumOfSquares {
  static constexpr int kOperands = 1;
  double value = 0;
  TESSERA_HD void add(double a, double) { value += a * a; }
  TESSERA_HD void join(SumOfSquares other) { value += other.value; }
  Reduced result() const { return {{value, 0}}; }
};
// 1 as soon as one element is not finite: only for those a - a differs from 0.
struct NotFinite {
  static constexpr int kOperands = 1;
  double value = 0;
  TESSERA_HD void add(double a, double) { value = a - a == 0 ? value : 1; }
  TESSERA_HD void join(NotFinite other) { value = other.value > value ? other.value : value; }
  Reduced result() const { return {{value, 0}}; }
};
struct MaxDifference {
  static constexpr int kOperands = 2;
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
  Reduced result() const { return {{difference.value, reference.value}}; }
};

// reduce(Type<State>{}) with the state of the reduction.
template <class Reduce>
inline Reduced with_reduction(Reduction op, Reduce&& reduce) {
  switch (op) {
    case Reduction::max_abs:
      return reduce(Type<MaxAbs>{});
    case Reduction::sum_of_squares:
      return reduce(Type<SumOfSquares>{});
    case Reduction::not_finite:
      return reduce(Type<NotFinite>{});
    case Reduction::max_difference:
      break;
  }
  return reduce(Type<MaxDifference>{});
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

// SPDX-License-Identifier: MIT
// States of the reductions along dims: `add` brings in the element at a position of the reduced
// loop, `join` another part. A new state is the identity of both.
#pragma once

#include "tessera/runtime/kernels/elementwise.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

// The value that no other exceeds upwards or downwards.
template <class A>
TESSERA_HD inline A lowest() {
  if constexpr (is_same<A, std::int64_t>)
    return bits_as<A>(std::uint64_t{1} << 63);
  else
    return -static_cast<A>(__builtin_huge_val());
}
template <class A>
TESSERA_HD inline A highest() {
  if constexpr (is_same<A, std::int64_t>)
    return bits_as<A>(~(std::uint64_t{1} << 63));
  else
    return static_cast<A>(__builtin_huge_val());
}

template <class A>
struct Sum {
  A value = 0;
  TESSERA_HD void add(A x, std::int64_t) { value += x; }
  TESSERA_HD void join(Sum other) { value += other.value; }
  TESSERA_HD A result() const { return value; }
};
template <class A>
struct Highest {
  A value = lowest<A>();
  TESSERA_HD void add(A x, std::int64_t) { value = maximum(x, value); }
  TESSERA_HD void join(Highest other) { value = maximum(other.value, value); }
  TESSERA_HD A result() const { return value; }
};
template <class A>
struct Lowest {
  A value = highest<A>();
  TESSERA_HD void add(A x, std::int64_t) { value = minimum(x, value); }
  TESSERA_HD void join(Lowest other) { value = minimum(other.value, value); }
  TESSERA_HD A result() const { return value; }
};
// A NaN is above all numbers; of equals the first. So neither order nor grouping matters.
template <class A>
struct IndexOfHighest {
  A value = lowest<A>();
  std::int64_t index = highest<std::int64_t>();
  TESSERA_HD void add(A x, std::int64_t at) {
    const bool x_nan = x != x;
    const bool own_nan = value != value;
    const bool above = (x > value) | (x_nan & !own_nan);
    const bool equal = (x == value) | (x_nan & own_nan);
    const bool better = above | (equal & (at < index));
    value = better ? x : value;
    index = better ? at : index;
  }
  TESSERA_HD void join(IndexOfHighest other) { add(other.value, other.index); }
  TESSERA_HD std::int64_t result() const { return index; }
};

// Calls body(Type<State>{}) with the state of the reduction, whose elements are of type A.
template <class A, class Body>
inline void with_fold(Fold op, Body&& body) {
  if (op == Fold::sum) return body(Type<Sum<A>>{});
  if (op == Fold::maximum) return body(Type<Highest<A>>{});
  if (op == Fold::minimum) return body(Type<Lowest<A>>{});
  body(Type<IndexOfHighest<A>>{});
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

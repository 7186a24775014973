// SPDX-License-Identifier: MIT
// Elementwise operations. Operands have one shape, mesh and placements (any S and R) unless it is
// said otherwise; nothing is broadcast. The result is placed as the first operand and has its order
// of dims in memory. Messages: none. Saved: the own block of what is listed, only if a gradient
// needs it. Errors: ShapeError, MeshError, PlacementError, PartialError; TypeError for dtypes.
#pragma once

#include <optional>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// One floating operand, the result in its dtype.
Var cos(const Var& x);      // saved: x
Var relu(const Var& x);     // gradient 0 at 0; saved: x > 0 (bool)
Var round(const Var& x);    // to the nearest, ties to even; a constant
Var log(const Var& x);      // saved: x
Var exp(const Var& x);      // saved: y
Var abs(const Var& x);      // gradient 0 at 0; saved: x
Var sigmoid(const Var& x);  // saved: y

// Two operands, the result in the wider dtype of the two (divide: at least f32 of integers).
Var add(const Var& a, const Var& b);
Var subtract(const Var& a, const Var& b);
Var multiply(const Var& a, const Var& b);  // saved: for the gradient of each operand the other one
Var divide(const Var& a, const Var& b);    // saved: b for that of a, a/b^2 for that of b
// Without gradient: GradientError if an operand requires one.
Var equal(const Var& a, const Var& b);    // a == b as numbers; bool
Var bit_and(const Var& a, const Var& b);  // integers and booleans

// A number and a tensor, in the order in which they are written. The number has no gradient and
// does not widen the dtype: of an integer tensor and a whole number the result is an integer (i64
// of a boolean), else f32; divide and power are at least f32 of integers.
Var add(double c, const Var& x);       // c + x
Var subtract(double c, const Var& x);  // c - x
Var multiply(double c, const Var& x);  // c x
Var divide(double c, const Var& x);    // c / x; saved: x
Var maximum(double c, const Var& x);   // gradient where x >= c; saved: x >= c (bool)
// x^c; saved: x unless c is 0. Collective RangeError for a negative element and a c that is not
// whole.
Var power(const Var& x, double c);
// Comparisons with the number, rounded to the dtype of a floating x: bool, constants.
Var equal(double c, const Var& x);    // c == x
Var greater(double c, const Var& x);  // c > x
Var less(double c, const Var& x);     // c < x

// min(max(x, low), high), floating; gradient where low <= x <= high; saved: that as bool.
// UsageError without any bound.
struct Bounds {
  std::optional<double> low = {};
  std::optional<double> high = {};
};
Var clip(const Var& x, Bounds bounds);

// x where cond is not 0, else y; row-major. cond: bool or any other dtype, without gradient
// (GradientError); saved: cond as bool.
Var where(const Var& cond, const Var& x, const Var& y);

enum class Arithmetic { add, subtract, multiply, divide };
// lhs op unsqueeze(rhs, dim): rhs has lhs's shape without dim, which is sharded; rhs is replicated
// on that mesh axis and otherwise placed as lhs (PlacementError).
//   Messages: backward, one all-reduce over that axis of the gradient of rhs, in at least f32.
//   Saved: multiply: for the gradient of each operand the other one; divide: rhs, and for its
//   gradient lhs.
Var replicate_op(const Var& lhs, const Var& rhs, int dim, Arithmetic op);

}  // namespace tessera

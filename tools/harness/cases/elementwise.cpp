// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/elementwise.hpp"

#include <algorithm>
#include <iterator>

#include "tessera/harness/cases/operations.hpp"
#include "tessera/layers/substrate/weighted_mean.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;

// A pair tensor with values in a range.
InputSpec ranged(const Sizes& s, const char* name, double low, double high) {
  InputSpec spec = pair(s, name);
  spec.low = low;
  spec.high = high;
  return spec;
}

// Well apart from multiples of 1/4, where operations have kinks and steps: k/4 + 1/8 up to 1/10.
InputSpec apart(const Sizes& s, const char* name) {
  InputSpec spec = pair(s, name);
  spec.at = [](const std::vector<std::int64_t>& index) {
    std::int64_t k = 3;
    for (const std::int64_t i : index) k = k * 31 + i;
    return static_cast<double>(k % 17 - 8) / 4 + 0.125 + 0.01 * static_cast<double>(k % 7 - 3);
  };
  return spec;
}

// Small whole numbers, so that many are equal.
InputSpec whole_numbers(const Sizes& s, const char* name) {
  InputSpec spec = ranged(s, name, -2, 3);
  spec.kind = InputKind::index;
  spec.differentiable = false;
  return spec;
}

InputSpec boolean(const Sizes& s, const char* name) {
  InputSpec spec = pair(s, name);
  spec.kind = InputKind::boolean;
  spec.differentiable = false;
  return spec;
}

using Function = Var (*)(const Var&);
Case of_range(const char* name, const char* description, Function f, double low, double high) {
  return operation(
      name, description, [=](const Sizes& s) { return Inputs{ranged(s, "x", low, high)}; },
      [f](const Vars& in) { return Vars{f(in[0])}; });
}

Case of_apart(const char* name, const char* description, std::function<Var(const Var&)> f) {
  return operation(
      name, description, [](const Sizes& s) { return Inputs{apart(s, "x")}; },
      [f](const Vars& in) { return Vars{f(in[0])}; });
}

// No gradient, hence no differentiable input.
Case without_gradient(const char* name, const char* description, std::function<Var(const Var&)> f) {
  return operation(
      name, description,
      [](const Sizes& s) {
        InputSpec x = ranged(s, "x", -3, 3);
        x.differentiable = false;
        return Inputs{x};
      },
      [f](const Vars& in) { return Vars{f(in[0])}; });
}

using PairFunction = Var (*)(const Var&, const Var&);
Case of_two(const char* name, const char* description, PairFunction f) {
  return operation(
      name, description,
      [](const Sizes& s) {
        return Inputs{ranged(s, "a", -1, 1), ranged(s, "b", 0.5, 2)};
      },
      [f](const Vars& in) { return Vars{f(in[0], in[1])}; });
}

// One of the two is a constant.
Case of_one(const char* name, const char* description, PairFunction f, bool first) {
  return operation(
      name, description,
      [=](const Sizes& s) {
        Inputs in{ranged(s, "a", -1, 1), ranged(s, "b", 0.5, 2)};
        in[first ? 1 : 0].differentiable = false;
        return in;
      },
      [f](const Vars& in) { return Vars{f(in[0], in[1])}; });
}

Case of_integers(const char* name, const char* description, PairFunction f) {
  return operation(
      name, description,
      [](const Sizes& s) {
        return Inputs{whole_numbers(s, "a"), whole_numbers(s, "b")};
      },
      [f](const Vars& in) { return Vars{f(in[0], in[1])}; });
}

// A single tensor against the columns (dim 2, of cp1) or a transposed one against the rows of a
// pair tensor.
Case replicate(const char* name, const char* description, int dim, Arithmetic op) {
  return operation(
      name, description,
      [=](const Sizes& s) {
        InputSpec rhs = single(s, "rhs");
        rhs.low = 0.5;
        rhs.high = 2;
        if (dim == 1) rhs.placements = single_t_placements();
        return Inputs{pair(s, "lhs"), rhs};
      },
      [=](const Vars& in) { return Vars{replicate_op(in[0], in[1], dim - 4, op)}; });
}

std::vector<Case> unary_cases() {
  return {
      of_range("cos", "Cosine of a pair tensor", cos, -3, 3),
      of_apart("relu", "max(0, x) of a pair tensor", relu),
      without_gradient("round", "To the nearest whole number", round),
      of_range("log", "Logarithm of a positive pair tensor", log, 0.5, 4),
      of_range("exp", "Exponential of a pair tensor", exp, -2, 2),
      of_apart("abs", "Absolute value of a pair tensor", abs),
      of_range("sigmoid", "Sigmoid of a pair tensor", sigmoid, -4, 4),
      of_apart("clip", "Within two bounds",
               [](const Var& x) {
                 return clip(x, {-0.5, 0.75});
               }),
      of_apart("clip.low", "Within a lower bound",
               [](const Var& x) {
                 return clip(x, {-0.5, {}});
               }),
  };
}

std::vector<Case> binary_cases() {
  return {
      of_two("add", "Sum of two pair tensors", add),
      of_two("subtract", "Difference of two pair tensors", subtract),
      of_two("multiply", "Product of two pair tensors", multiply),
      of_one("multiply.mask", "Product with a constant", multiply, true),
      of_two("divide", "Quotient of two pair tensors", divide),
      of_one("divide.constant", "A constant divided by a pair tensor", divide, false),
      of_two("weighted_mean", "Mean over sharded and whole dims",
             [](const Var& x, const Var& w) {
               return weighted_mean(x, w, {1, 2, 3}, 0.5);
             }),
      of_integers("equal", "Equality of whole numbers", equal),
      of_integers("bit_and", "Bits that two tensors share", bit_and),
      operation(
          "where", "One of two pair tensors by a mask",
          [](const Sizes& s) {
            return Inputs{boolean(s, "cond"), pair(s, "x"), pair(s, "y")};
          },
          [](const Vars& in) { return Vars{where(in[0], in[1], in[2])}; }),
  };
}

std::vector<Case> number_cases() {
  return {
      of_apart("scalar.add", "3/2 + x", [](const Var& x) { return add(1.5, x); }),
      of_apart("scalar.subtract", "3/2 - x", [](const Var& x) { return subtract(1.5, x); }),
      of_apart("scalar.multiply", "-3 x", [](const Var& x) { return multiply(-3, x); }),
      of_range(
          "scalar.divide", "2 / x", [](const Var& x) { return divide(2, x); }, 0.5, 3),
      of_apart("scalar.maximum", "max(1/2, x)", [](const Var& x) { return maximum(0.5, x); }),
      of_apart("power", "x^3, of both signs", [](const Var& x) { return power(x, 3); }),
      of_range(
          "power.root", "x^-3/2", [](const Var& x) { return power(x, -1.5); }, 0.5, 3),
      operation(
          "scalar.equal", "1 == x of whole numbers",
          [](const Sizes& s) { return Inputs{whole_numbers(s, "x")}; },
          [](const Vars& in) { return Vars{equal(1, in[0])}; }),
      without_gradient("scalar.greater", "1/2 > x", [](const Var& x) { return greater(0.5, x); }),
      without_gradient("scalar.less", "1/2 < x", [](const Var& x) { return less(0.5, x); }),
  };
}

std::vector<Case> replicate_cases() {
  return {
      replicate("replicate_op.add", "Plus a single tensor for all columns", 2, Arithmetic::add),
      replicate("replicate_op.subtract", "Minus a transposed single tensor for all rows", 1,
                Arithmetic::subtract),
      replicate("replicate_op.multiply", "Times a single tensor for all columns", 2,
                Arithmetic::multiply),
      replicate("replicate_op.divide", "By a transposed single tensor for all rows", 1,
                Arithmetic::divide),
  };
}

}  // namespace

std::vector<Case> elementwise_cases() {
  std::vector<Case> all = unary_cases();
  for (const auto& group : {binary_cases, number_cases, replicate_cases}) {
    std::vector<Case> more = group();
    std::move(more.begin(), more.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace tessera::harness

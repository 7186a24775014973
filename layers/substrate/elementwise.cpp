// SPDX-License-Identifier: MIT
// Elementwise operations of one tensor.
#include "tessera/layers/substrate/elementwise.hpp"

#include <fmt/format.h>

#include <cmath>

#include "tessera/layers/substrate/common.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Tensors = std::vector<DTensor>;

// What the gradient is made of besides g.
enum class Kept {
  no_gradient,
  nothing,
  operand,
  result,
  mask,  // where g passes: bool
};

// A function of one operand from an Op, which has a name, `kept`, forward(x, y) and, by `kept`,
// mask(x, mask) or backward(kept, g, dx).
template <class Op>
struct Elementwise1 {
  static constexpr const char* name = Op::name;
  static constexpr bool differentiable = Op::kept != Kept::no_gradient;
  Op op;
  DType result;
  bool needs_grad;

  Contract contract(const Tensors&) const {
    Contract c{.inputs = {{"x", any_shape(), {PlacementRule::Kind::any}}},
               .outputs = {{"y", same_shape("x"), {PlacementRule::Kind::like_first}}},
               .messages = {},
               .saved = {}};
    if (!needs_grad) return c;
    if (Op::kept == Kept::operand) c.saved = {saved_block("x")};
    if (Op::kept == Kept::result) c.saved = {saved_block("y", "x", sym("e(x)"))};
    if (Op::kept == Kept::mask) c.saved = {saved_block("mask", "x", 1)};
    return c;
  }

  Tensors forward(FunctionContext& ctx, const Tensors& in) const {
    const DTensor& x = in[0];
    const DTensor y = empty_like(x, result);
    op.forward(x.local(), y.local());
    if (!needs_grad) return {y};
    if constexpr (Op::kept == Kept::operand) ctx.save("x", x);
    if constexpr (Op::kept == Kept::result) ctx.save("y", y);
    if constexpr (Op::kept == Kept::mask) {
      const DTensor mask = empty_like(x, DType::boolean);
      op.mask(x.local(), mask.local());
      ctx.save("mask", mask);
    }
    return {y};
  }

  Tensors backward(FunctionContext& ctx, const Tensors& gradients) const requires differentiable {
    const DTensor& g = gradients[0];
    if constexpr (Op::kept == Kept::mask)
      return {where_set(ctx.saved("mask"), g)};
    else {
      Tensor kept;
      if (Op::kept == Kept::operand) kept = ctx.saved("x");
      if (Op::kept == Kept::result) kept = ctx.saved("y");
      const DTensor dx = empty_like(g, g.dtype());
      op.backward(kept, g.local(), dx.local());
      return {dx};
    }
  }
};

// What g is multiplied by, before it is rounded.
Tensor factor_for(const Tensor& g) {
  const PurposeScope purpose(Purpose::workspace);
  return Tensor::empty(g.shape(), at_least_f32(g.dtype()), g.device());
}

// --- functions ---------------------------------------------------------------------------------

struct Cos {
  static constexpr const char* name = "cos";
  static constexpr Kept kept = Kept::operand;
  void forward(const Tensor& x, const Tensor& y) const { unary(Unary::cos, x, y); }
  void backward(const Tensor& x, const Tensor& g, const Tensor& dx) const {
    const Tensor factor = factor_for(g);
    unary(Unary::sin, x, factor);
    scale(-1, factor);
    binary(Binary::multiply, g, factor, dx);
  }
};

struct Relu {
  static constexpr const char* name = "relu";
  static constexpr Kept kept = Kept::mask;
  void forward(const Tensor& x, const Tensor& y) const { unary(Unary::relu, x, y); }
  void mask(const Tensor& x, const Tensor& passes) const { unary(Unary::step, x, passes); }
};

struct Round {
  static constexpr const char* name = "round";
  static constexpr Kept kept = Kept::no_gradient;
  void forward(const Tensor& x, const Tensor& y) const { unary(Unary::round, x, y); }
};

struct Log {
  static constexpr const char* name = "log";
  static constexpr Kept kept = Kept::operand;
  void forward(const Tensor& x, const Tensor& y) const { unary(Unary::log, x, y); }
  void backward(const Tensor& x, const Tensor& g, const Tensor& dx) const {
    binary(Binary::divide, g, x, dx);
  }
};

struct Exp {
  static constexpr const char* name = "exp";
  static constexpr Kept kept = Kept::result;
  void forward(const Tensor& x, const Tensor& y) const { unary(Unary::exp, x, y); }
  void backward(const Tensor& y, const Tensor& g, const Tensor& dx) const {
    binary(Binary::multiply, g, y, dx);
  }
};

struct Abs {
  static constexpr const char* name = "abs";
  static constexpr Kept kept = Kept::operand;
  void forward(const Tensor& x, const Tensor& y) const { unary(Unary::abs, x, y); }
  void backward(const Tensor& x, const Tensor& g, const Tensor& dx) const {
    const Tensor factor = factor_for(g);
    unary(Unary::sign, x, factor);
    binary(Binary::multiply, g, factor, dx);
  }
};

struct Sigmoid {
  static constexpr const char* name = "sigmoid";
  static constexpr Kept kept = Kept::result;
  void forward(const Tensor& x, const Tensor& y) const { unary(Unary::sigmoid, x, y); }
  void backward(const Tensor& y, const Tensor& g, const Tensor& dx) const {
    const Tensor factor = factor_for(g);
    binary(Binary::subtract, 1, y, factor);
    binary(Binary::multiply, factor, y, factor);
    binary(Binary::multiply, g, factor, dx);
  }
};

// --- with a number -----------------------------------------------------------------------------

struct AddNumber {
  static constexpr const char* name = "add";
  static constexpr Kept kept = Kept::nothing;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::add, c, x, y); }
  void backward(const Tensor&, const Tensor& g, const Tensor& dx) const { copy(g, dx); }
};

struct SubtractFromNumber {
  static constexpr const char* name = "subtract";
  static constexpr Kept kept = Kept::nothing;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::subtract, c, x, y); }
  void backward(const Tensor&, const Tensor& g, const Tensor& dx) const {
    unary(Unary::negate, g, dx);
  }
};

struct MultiplyNumber {
  static constexpr const char* name = "multiply";
  static constexpr Kept kept = Kept::nothing;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::multiply, c, x, y); }
  void backward(const Tensor&, const Tensor& g, const Tensor& dx) const {
    binary(Binary::multiply, c, g, dx);
  }
};

struct DivideNumber {
  static constexpr const char* name = "divide";
  static constexpr Kept kept = Kept::operand;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::divide, c, x, y); }
  void backward(const Tensor& x, const Tensor& g, const Tensor& dx) const {
    const Tensor factor = factor_for(g);  // -c/x/x: x^2 might overflow
    binary(Binary::divide, -c, x, factor);
    binary(Binary::divide, factor, x, factor);
    binary(Binary::multiply, g, factor, dx);
  }
};

struct MaximumWithNumber {
  static constexpr const char* name = "maximum";
  static constexpr Kept kept = Kept::mask;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::maximum, c, x, y); }
  void mask(const Tensor& x, const Tensor& passes) const {
    binary(Binary::less_equal, c, x, passes);
  }
};

struct Power {
  static constexpr const char* name = "power";
  static constexpr Kept kept = Kept::operand;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::power, x, c, y); }
  void backward(const Tensor& x, const Tensor& g, const Tensor& dx) const {
    const Tensor factor = factor_for(g);
    binary(Binary::power, x, c - 1, factor);
    scale(c, factor);
    binary(Binary::multiply, g, factor, dx);
  }
};

// x^0, which is constant.
struct PowerZero {
  static constexpr const char* name = "power";
  static constexpr Kept kept = Kept::nothing;
  void forward(const Tensor&, const Tensor& y) const { fill(y, 1); }
  void backward(const Tensor&, const Tensor&, const Tensor& dx) const { fill(dx, 0); }
};

struct EqualNumber {
  static constexpr const char* name = "equal";
  static constexpr Kept kept = Kept::no_gradient;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::equal, c, x, y); }
};

struct GreaterNumber {
  static constexpr const char* name = "greater";
  static constexpr Kept kept = Kept::no_gradient;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::less, x, c, y); }
};

struct LessNumber {
  static constexpr const char* name = "less";
  static constexpr Kept kept = Kept::no_gradient;
  double c;
  void forward(const Tensor& x, const Tensor& y) const { binary(Binary::less, c, x, y); }
};

struct Clip {
  static constexpr const char* name = "clip";
  static constexpr Kept kept = Kept::mask;
  Bounds bounds;
  void forward(const Tensor& x, const Tensor& y) const {
    copy(x, y);
    if (bounds.low) binary(Binary::maximum, y, *bounds.low, y);
    if (bounds.high) binary(Binary::minimum, y, *bounds.high, y);
  }
  void mask(const Tensor& x, const Tensor& passes) const {
    fill(passes, 1);
    const Tensor one = Tensor::empty(x.shape(), DType::boolean, x.device());
    if (bounds.low) binary(Binary::less_equal, *bounds.low, x, passes);
    if (!bounds.high) return;
    binary(Binary::less_equal, x, *bounds.high, one);
    binary(Binary::logical_and, passes, one, passes);
  }
};

// --- calls -------------------------------------------------------------------------------------

template <class Op>
Var apply_op(const Op& op, const Var& x, DType result) {
  return apply_many(Elementwise1<Op>{op, result, x.requires_grad()}, {x}).front();
}

template <class Op>
Var apply_floating(const Op& op, const Var& x) {
  require_floating(x, Op::name, "x");
  return apply_op(op, x, x.value().dtype());
}

template <class Op>
Var apply_number(const Op& op, const Var& x) {
  const DType dtype = x.value().dtype();
  if (is_floating(dtype)) return apply_op(op, x, dtype);
  if (op.c != std::trunc(op.c)) return apply_op(op, x, DType::f32);
  return apply_op(op, x, dtype == DType::boolean ? DType::i64 : dtype);
}

DType or_f32(DType dtype) {
  return is_floating(dtype) ? dtype : DType::f32;
}

// The number as an element of x would hold it.
double rounded(double c, const Var& x) {
  return is_floating(x.value().dtype()) ? Tensor::full({}, c, x.value().dtype()).item() : c;
}

// Collective: the first negative element of any rank is an error of all.
void refuse_negative(const DTensor& x, double exponent) {
  expect(x, "power", "x", {});  // the parts of a sum may well be negative
  if (!has_values(x.local())) return;
  collective_try(x.mesh(), [&] {
    const std::vector<double> values = to_values(x.local());
    for (const double value : values)
      if (value < 0)
        throw RangeError({.problem = "a negative element has no power that is not whole",
                          .operation = "power",
                          .tensor = "x",
                          .found = fmt::format("{}^{}", value, exponent),
                          .expected = "elements >= 0",
                          .hint = "call abs() or clip() first"});
  });
}

}  // namespace

Var cos(const Var& x) {
  return apply_floating(Cos{}, x);
}
Var relu(const Var& x) {
  return apply_floating(Relu{}, x);
}
Var round(const Var& x) {
  return apply_floating(Round{}, x);
}
Var log(const Var& x) {
  return apply_floating(Log{}, x);
}
Var exp(const Var& x) {
  return apply_floating(Exp{}, x);
}
Var abs(const Var& x) {
  return apply_floating(Abs{}, x);
}
Var sigmoid(const Var& x) {
  return apply_floating(Sigmoid{}, x);
}

Var add(double c, const Var& x) {
  return apply_number(AddNumber{c}, x);
}
Var subtract(double c, const Var& x) {
  return apply_number(SubtractFromNumber{c}, x);
}
Var multiply(double c, const Var& x) {
  return apply_number(MultiplyNumber{c}, x);
}
Var maximum(double c, const Var& x) {
  return apply_number(MaximumWithNumber{c}, x);
}
Var divide(double c, const Var& x) {
  return apply_op(DivideNumber{c}, x, or_f32(x.value().dtype()));
}

Var power(const Var& x, double c) {
  const DType result = or_f32(x.value().dtype());
  if (c == 0) return apply_op(PowerZero{}, x, result);
  if (c != std::trunc(c)) refuse_negative(x.value(), c);
  return apply_op(Power{c}, x, result);
}

Var equal(double c, const Var& x) {
  return apply_op(EqualNumber{rounded(c, x)}, x, DType::boolean);
}
Var greater(double c, const Var& x) {
  return apply_op(GreaterNumber{rounded(c, x)}, x, DType::boolean);
}
Var less(double c, const Var& x) {
  return apply_op(LessNumber{rounded(c, x)}, x, DType::boolean);
}

Var clip(const Var& x, Bounds bounds) {
  if (!bounds.low && !bounds.high)
    throw UsageError({.problem = "no bound", .operation = "clip", .expected = "low, high or both"});
  return apply_floating(Clip{bounds}, x);
}

}  // namespace tessera

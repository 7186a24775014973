// SPDX-License-Identifier: MIT
// Elementwise arithmetic.
#include <cmath>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/kernels/loop.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using E = Elementwise;

void check_floating(const char* operation, check::Operands operands) {
  check::same_device(operation, operands);
  check::floating(operation, operands);
  check::same_shape(operation, operands);
}

// How the kernels compute an operation.
struct Form {
  const char* name;
  E op;
  Coefficients coefficients = {};
};

Form form_of(Unary op) {
  switch (op) {
    case Unary::cos:
      return {"cos", E::cos};
    case Unary::sin:
      return {"sin", E::sin};
    case Unary::relu:
      return {"relu", E::relu};
    case Unary::round:
      return {"round", E::round};
    case Unary::log:
      return {"log", E::log};
    case Unary::exp:
      return {"exp", E::exp};
    case Unary::abs:
      return {"abs", E::abs};
    case Unary::sign:
      return {"sign", E::sign};
    case Unary::sigmoid:
      return {"sigmoid", E::sigmoid};
    case Unary::sqrt:
      return {"sqrt", E::sqrt};
    case Unary::negate:
      return {"negate", E::scale, {-1}};
    case Unary::logical_not:
      return {"logical_not", E::logical_not};
    case Unary::step:
      break;
  }
  return {"step", E::step};
}

Form form_of(Binary op) {
  switch (op) {
    case Binary::add:
      return {"add", E::add, {1, 1}};
    case Binary::subtract:
      return {"subtract", E::add, {1, -1}};
    case Binary::multiply:
      return {"multiply", E::multiply};
    case Binary::divide:
      return {"divide", E::divide};
    case Binary::maximum:
      return {"maximum", E::maximum};
    case Binary::minimum:
      return {"minimum", E::minimum};
    case Binary::power:
      return {"power", E::power};
    case Binary::equal:
      return {"equal", E::equal};
    case Binary::less:
      return {"less", E::less};
    case Binary::less_equal:
      return {"less_equal", E::less_equal};
    case Binary::logical_and:
      return {"logical_and", E::logical_and};
    case Binary::bit_and:
      break;
  }
  return {"bit_and", E::bit_and};
}

void check_integers(const char* operation, check::Operands operands) {
  for (const auto& [name, tensor] : operands)
    if (is_floating(tensor.dtype()))
      throw TypeError({.problem = "operand is floating",
                       .operation = operation,
                       .tensor = name,
                       .found = std::string(name_of(tensor.dtype())),
                       .expected = "i64, i32 or bool",
                       .hint = "convert it with to(dtype)"});
}

// The number as an operand beside `other`.
Tensor number(double value, const Tensor& other) {
  DType dtype = at_least_f32(other.dtype());
  const bool whole = std::trunc(value) == value && std::abs(value) < 0x1p63;
  if (!is_floating(other.dtype()) && whole) dtype = DType::i64;
  const PurposeScope workspace(Purpose::workspace);
  return Tensor::full(Shape(other.shape().size(), 1), value, dtype, other.device())
      .expand(other.shape());
}

}  // namespace

void add(double alpha, const Tensor& a, double beta, const Tensor& b, const Tensor& out) {
  check_floating("add", {{"a", a}, {"b", b}, {"out", out}});
  run_elementwise("add", Elementwise::add, {alpha, beta}, out, {&a, &b});
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_floating("multiply", {{"a", a}, {"b", b}, {"out", out}});
  run_elementwise("multiply", Elementwise::multiply, {}, out, {&a, &b});
}

void scale(double alpha, const Tensor& dst) {
  check_floating("scale", {{"dst", dst}});
  run_elementwise("scale", Elementwise::scale, {alpha}, dst, {&dst});
}

void maximum(const Tensor& a, const Tensor& b, const Tensor& out) {
  check_floating("maximum", {{"a", a}, {"b", b}, {"out", out}});
  run_elementwise("maximum", Elementwise::maximum, {}, out, {&a, &b});
}

void unary(Unary op, const Tensor& a, const Tensor& out) {
  const Form form = form_of(op);
  check::same_device(form.name, {{"a", a}, {"out", out}});
  check::same_shape(form.name, {{"a", a}, {"out", out}});
  run_elementwise(form.name, form.op, form.coefficients, out, {&a});
}

void binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  const Form form = form_of(op);
  check::same_device(form.name, {{"a", a}, {"b", b}, {"out", out}});
  check::same_shape(form.name, {{"a", a}, {"b", b}, {"out", out}});
  if (op == Binary::bit_and) check_integers(form.name, {{"a", a}, {"b", b}});
  run_elementwise(form.name, form.op, form.coefficients, out, {&a, &b});
}

void binary(Binary op, double a, const Tensor& b, const Tensor& out) {
  check::same_device(form_of(op).name, {{"b", b}, {"out", out}});
  binary(op, number(a, b), b, out);
}

void binary(Binary op, const Tensor& a, double b, const Tensor& out) {
  check::same_device(form_of(op).name, {{"a", a}, {"out", out}});
  binary(op, a, number(b, a), out);
}

void select(const Tensor& cond, const Tensor& a, const Tensor& b, const Tensor& out) {
  check::same_device("select", {{"cond", cond}, {"a", a}, {"b", b}, {"out", out}});
  check::same_shape("select", {{"cond", cond}, {"a", a}, {"b", b}, {"out", out}});
  // A boolean decides nothing about the arithmetic, in which integers must stay exact.
  const PurposeScope workspace(Purpose::workspace);
  const Tensor choice = is_floating(cond.dtype()) ? cond.to(DType::boolean) : cond;
  run_elementwise("select", Elementwise::select, {}, out, {&choice, &a, &b});
}

}  // namespace tessera

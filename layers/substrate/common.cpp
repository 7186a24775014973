// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/common.hpp"

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {

DTensor carried(const DTensor& x, const Shape& shape, const Tensor& block) {
  const Strides strides = carry_strides(x.shape(), x.strides(), shape);
  if (strides == row_major_strides(shape))
    return DTensor::from_local(block, x.mesh(), x.placements(), shape, strides);
  DTensor y = empty_carried(x, shape, x.placements(), block.dtype());
  copy(block, y.local());
  return y;
}

DTensor folded(Fold op, const DTensor& x, const std::vector<int>& dims, DType dtype) {
  Shape shape = x.shape();
  for (const int dim : dims) shape[static_cast<std::size_t>(dim)] = 1;
  const DTensor y = empty_carried(x, shape, x.placements(), dtype);
  fold(op, x.local(), dims, y.local());
  return y;
}

void require_floating(const Var& x, const char* operation, const char* tensor) {
  if (!x.value().defined() || is_floating(x.value().dtype())) return;
  throw TypeError({.problem = "only floating tensors are accepted",
                   .operation = operation,
                   .tensor = tensor,
                   .found = x.value().describe(),
                   .expected = "f64, f32 or bf16"});
}

void require_index(const Var& x, const char* operation, const char* tensor) {
  const DType dtype = x.value().dtype();
  if (!x.value().defined() || dtype == DType::i64 || dtype == DType::i32) return;
  throw TypeError({.problem = "indices are whole numbers",
                   .operation = operation,
                   .tensor = tensor,
                   .found = x.value().describe(),
                   .expected = "i64 or i32"});
}

void refuse_gradient(const Var& x, const char* operation, const char* tensor) {
  if (!x.requires_grad()) return;
  throw GradientError({.problem = "no gradient leads through this operand",
                       .operation = operation,
                       .tensor = tensor,
                       .found = x.value().describe() + " that requires a gradient",
                       .expected = "a constant",
                       .hint = "pass Var::constant(x.value())"});
}

namespace {

DTensor selected(const Tensor& mask, const DTensor& g, bool where_set) {
  const Tensor zero =
      Tensor::zeros(Shape(g.local().shape().size(), 1), g.dtype(), g.local().device())
          .expand(g.local().shape());
  DTensor d = empty_like(g, g.dtype());
  select(mask, where_set ? g.local() : zero, where_set ? zero : g.local(), d.local());
  return d;
}

}  // namespace

DTensor where_set(const Tensor& mask, const DTensor& g) {
  return selected(mask, g, true);
}
DTensor where_not_set(const Tensor& mask, const DTensor& g) {
  return selected(mask, g, false);
}

DTensor negated(const DTensor& g) {
  DTensor d = empty_like(g, g.dtype());
  unary(Unary::negate, g.local(), d.local());
  return d;
}

}  // namespace tessera

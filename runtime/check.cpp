// SPDX-License-Identifier: MIT
#include "tessera/runtime/check.hpp"

#include <fmt/format.h>

#include "tessera/runtime/error.hpp"

namespace tessera::check {

void same_device(const char* operation, Operands operands) {
  const Tensor& first = operands.begin()->tensor;
  for (const auto& [name, tensor] : operands) {
    if (!tensor.defined())
      throw TypeError({.problem = "operand is undefined", .operation = operation, .tensor = name});
    if (tensor.device() != first.device())
      throw DeviceError({.problem = "operands are on different devices",
                         .operation = operation,
                         .tensor = name,
                         .found = name_of(tensor.device()),
                         .expected = name_of(first.device()),
                         .hint = "move one of them with to(device)"});
  }
}

void floating(const char* operation, Operands operands) {
  for (const auto& [name, tensor] : operands)
    if (!is_floating(tensor.dtype()))
      throw TypeError({.problem = "operand is not floating",
                       .operation = operation,
                       .tensor = name,
                       .found = std::string(name_of(tensor.dtype())),
                       .expected = "f64, f32 or bf16"});
}

void dtype(const char* operation, Operand operand, DType expected) {
  if (operand.tensor.dtype() != expected)
    throw TypeError({.problem = "operand has another dtype",
                     .operation = operation,
                     .tensor = operand.name,
                     .found = std::string(name_of(operand.tensor.dtype())),
                     .expected = std::string(name_of(expected))});
}

void same_dtype(const char* operation, Operands operands) {
  for (const Operand& operand : operands)
    dtype(operation, operand, operands.begin()->tensor.dtype());
}

void dims(const char* operation, Operand operand, int expected) {
  if (operand.tensor.ndim() != expected)
    throw ShapeError({.problem = "operand has another number of dims",
                      .operation = operation,
                      .tensor = operand.name,
                      .found = format_shape(operand.tensor.shape()),
                      .expected = fmt::format("{} dims", expected)});
}

void shape(const char* operation, Operand operand, const Shape& expected) {
  if (operand.tensor.shape() != expected)
    throw ShapeError({.problem = "operand has another shape",
                      .operation = operation,
                      .tensor = operand.name,
                      .found = format_shape(operand.tensor.shape()),
                      .expected = format_shape(expected)});
}

void same_shape(const char* operation, Operands operands) {
  for (const Operand& operand : operands)
    shape(operation, operand, operands.begin()->tensor.shape());
}

void unit_stride(const char* operation, Operand operand) {
  const Tensor& tensor = operand.tensor;
  if (tensor.ndim() > 0 && tensor.shape().back() > 1 && tensor.strides().back() != 1)
    bad_strides(operation, operand, "unit stride in the last dim");
}

void bad_strides(const char* operation, Operand operand, const char* expected) {
  throw StrideError({.problem = "operand has strides that are not accepted",
                     .operation = operation,
                     .tensor = operand.name,
                     .found = format_shape(operand.tensor.strides()) + " for shape " +
                              format_shape(operand.tensor.shape()),
                     .expected = expected,
                     .hint = "call contiguous() first"});
}

}  // namespace tessera::check

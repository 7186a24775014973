// SPDX-License-Identifier: MIT
// The checks that local operations share. Each names the operation and the operand it refuses.
#pragma once

#include <initializer_list>
#include <string>

#include "tessera/runtime/tensor.hpp"

namespace tessera::check {

struct Operand {
  const char* name;
  const Tensor& tensor;
};
using Operands = std::initializer_list<Operand>;

void same_device(const char* operation, Operands operands);  // defined, too (TypeError)
void floating(const char* operation, Operands operands);
void dtype(const char* operation, Operand operand, DType expected);
void same_dtype(const char* operation, Operands operands);
void dims(const char* operation, Operand operand, int expected);
void shape(const char* operation, Operand operand, const Shape& expected);
void same_shape(const char* operation, Operands operands);
// The last dim has unit stride, or at most one element.
void unit_stride(const char* operation, Operand operand);
[[noreturn]] void bad_strides(const char* operation, Operand operand, const char* expected);

}  // namespace tessera::check

// SPDX-License-Identifier: MIT
// Element types and the promotion table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

enum class DType : std::uint8_t { f64, f32, bf16, i64, i32, boolean };

// Storage of a bfloat16: the upper half of an IEEE float32. Conversions live with the kernels
// (runtime/kernels/scalar.hpp), which are compiled once per instruction set.
struct bf16 {
  std::uint16_t bits;
};

std::size_t size_of(DType dtype);       // bytes per element; a boolean takes one
std::string_view name_of(DType dtype);  // "f64", "f32", "bf16", "i64", "i32", "bool"
std::optional<DType> parse_dtype(std::string_view text);
bool is_floating(DType dtype);

// bool < i32 < i64 < bf16 < f32 < f64.
DType promote(DType a, DType b);
// The type in which reductions, statistics and accumulators are formed: f64 stays, all else is f32.
DType at_least_f32(DType dtype);

}  // namespace tessera

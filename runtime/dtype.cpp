// SPDX-License-Identifier: MIT
#include "tessera/runtime/dtype.hpp"

#include <array>

namespace tessera {
namespace {

struct Row {
  std::size_t bytes;
  std::string_view name;
  int rank;  // position in the promotion order
};

constexpr std::array<Row, 6> kRows{
    {{8, "f64", 5}, {4, "f32", 4}, {2, "bf16", 3}, {8, "i64", 2}, {4, "i32", 1}, {1, "bool", 0}}};

const Row& row(DType dtype) {
  return kRows[static_cast<std::size_t>(dtype)];
}

}  // namespace

std::size_t size_of(DType dtype) {
  return row(dtype).bytes;
}

std::string_view name_of(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (std::size_t i = 0; i < kRows.size(); ++i)
    if (kRows[i].name == text) return static_cast<DType>(i);
  return std::nullopt;
}

bool is_floating(DType dtype) {
  return row(dtype).rank >= row(DType::bf16).rank;
}

DType promote(DType a, DType b) {
  return row(a).rank >= row(b).rank ? a : b;
}

DType at_least_f32(DType dtype) {
  return promote(dtype, DType::f32);
}

}  // namespace tessera

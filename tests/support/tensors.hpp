// SPDX-License-Identifier: MIT
// Random operands in every layout, and comparison with values computed in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "support/catch.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/random.hpp"

namespace tessera {

inline const std::vector<DType> floating_dtypes{DType::f64, DType::f32, DType::bf16};

// Uniform in [-1, 1), a function of the name alone.
inline Tensor random_tensor(const Shape& shape, DType dtype, std::string_view name) {
  const Tensor tensor = Tensor::empty(shape, dtype);
  fill_uniform(tensor, {7, stream_id(name)}, whole(shape), -1, 1);
  return tensor;
}

// The same values behind other strides: dims in reverse order in memory, and room around them.
inline Tensor scattered(const Tensor& tensor) {
  Shape shape;
  std::vector<int> reversed;
  for (int d = tensor.ndim(); d-- > 0;) {
    shape.push_back(tensor.size(d) + 3);
    reversed.push_back(d);
  }
  Tensor view = Tensor::full(shape, 77, tensor.dtype()).permute(reversed);
  for (int d = 0; d < tensor.ndim(); ++d) view = view.narrow(d, 1, tensor.size(d));
  copy(tensor, view);
  return view;
}

// Half a unit in the last place, relative: how far one rounding can be off.
inline double rounding_of(DType dtype) {
  if (dtype == DType::f64) return 0x1p-53;
  return dtype == DType::f32 ? 0x1p-24 : 0x1p-8;
}

// max |found - expected| <= tolerance * max(1, |expected|), elementwise.
inline void check_close(const Tensor& found, const std::vector<double>& expected,
                        double tolerance) {
  const std::vector<double> values = to_values(found);
  REQUIRE(values.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]) / std::fmax(1.0, std::abs(expected[i]));
    worst = error <= worst ? worst : error;  // a NaN is kept
  }
  CHECK(worst <= tolerance);
}

inline bool bitwise_equal(const Tensor& a, const Tensor& b) {
  const Tensor x = a.contiguous();
  const Tensor y = b.contiguous();
  const auto* p = static_cast<const unsigned char*>(x.data());
  const auto* q = static_cast<const unsigned char*>(y.data());
  return x.bytes() == y.bytes() && std::vector<unsigned char>(p, p + x.bytes()) ==
                                       std::vector<unsigned char>(q, q + y.bytes());
}

}  // namespace tessera

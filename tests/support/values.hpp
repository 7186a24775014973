// SPDX-License-Identifier: MIT
// The numbers of a tensor by index, for formulas in plain loops.
#pragma once

#include <initializer_list>
#include <vector>

#include "tessera/runtime/tensor.hpp"

namespace tessera {

struct Values {
  Shape shape;
  std::vector<double> data;

  explicit Values(const Tensor& t) : shape(t.shape()), data(to_values(t.to(DType::f64))) {}
  double operator()(std::initializer_list<std::int64_t> index) const {
    std::int64_t at = 0;
    std::size_t d = 0;
    for (const std::int64_t i : index) at = at * shape[d++] + i;
    return data[static_cast<std::size_t>(at)];
  }
};

}  // namespace tessera

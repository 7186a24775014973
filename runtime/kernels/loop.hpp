// SPDX-License-Identifier: MIT
// From tensors of equal shape to the loop of an elementwise kernel (kernels/table.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/runtime/kernels/table.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

struct LoopDim {
  std::int64_t size;
  std::array<std::int64_t, 4> strides;  // of out and in[]; 0 where an operand is absent
};

// The dims of the operands, from the outermost to the innermost in memory as `out` sees it, with
// neighbours merged where all operands allow it.
std::vector<LoopDim> loop_dims(const Tensor& out, const std::vector<const Tensor*>& in);

// UnsupportedError for more than kMaxDims.
ElementwiseArgs loop_args(const char* operation, Elementwise op, const std::vector<LoopDim>& dims,
                          const Tensor& out, const std::vector<const Tensor*>& in);

struct Coefficients {
  double alpha = 0;
  double beta = 0;
};
// out = op(in...), which the caller has checked.
void run_elementwise(const char* operation, Elementwise op, Coefficients coefficients,
                     const Tensor& out, const std::vector<const Tensor*>& in);

}  // namespace tessera

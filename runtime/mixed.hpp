// SPDX-License-Identifier: MIT
// Kernels work on operands of one dtype. An operation that is given several (bf16 tensors among
// f32 ones) works in the widest, through temporaries for the others.
#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "tessera/runtime/ops.hpp"

namespace tessera {

class Mixed {
 public:
  Mixed(std::initializer_list<Tensor> operands) : dtype_(operands.begin()->dtype()) {
    for (const Tensor& t : operands) include(t);
  }
  void include(const Tensor& t) { dtype_ = promote(dtype_, t.dtype()); }  // before in() and out()
  DType dtype() const { return dtype_; }
  Tensor in(const Tensor& t) const {
    const PurposeScope purpose(Purpose::workspace);
    return t.to(dtype_);
  }
  // What to write instead of t; finish() brings it there.
  Tensor out(const Tensor& t) {
    if (t.dtype() == dtype_) return t;
    const PurposeScope purpose(Purpose::workspace);
    const Tensor wide = Tensor::empty(t.shape(), dtype_, t.device());
    pending_.emplace_back(wide, t);
    return wide;
  }
  void finish() const {
    for (const auto& [wide, t] : pending_) copy(wide, t);
  }

 private:
  DType dtype_;
  std::vector<std::pair<Tensor, Tensor>> pending_;
};

}  // namespace tessera

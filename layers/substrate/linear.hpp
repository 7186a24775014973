// SPDX-License-Identifier: MIT
// Linear: y = x W^T + b over the last dim.
//   x [..., in] any S/R placements, last dim not sharded; y [..., out] placed alike.
//   Parameters: weight [out, in], bias [out] (optional).
//   Messages: none; the parameter gradients are summands on the axes that shard x.
//   Saved: x, if the weight is trained. Products in x's dtype with weights cast to it, sums and
//   parameter gradients in at least f32.
#pragma once

#include "tessera/layers/module.hpp"

namespace tessera {

class Linear : public Module {
 public:
  Linear(const Build& build, std::int64_t in, std::int64_t out, bool bias = true,
         Init init = Init::fan_in);
  Var forward(const Var& x) const;
  // For layers that use the parameters inside a function of their own.
  const Var& weight() const { return weight_; }
  const Var& bias() const { return bias_; }

 private:
  Var weight_, bias_;
};

}  // namespace tessera

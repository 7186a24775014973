// SPDX-License-Identifier: MIT
// LayerNorm over the last dim: y = (x - mean)/sqrt(var + 1e-5) * weight + bias, biased variance.
//   x [..., channels] any S/R placements, last dim not sharded; y placed alike.
//   Parameters: weight [channels] (one), bias [channels] (zero).
//   Messages: none; the parameter gradients are summands on the axes that shard x.
//   Saved: x, mean, rstd (class of x's placements). Statistics in at least f32.
#pragma once

#include "tessera/layers/module.hpp"

namespace tessera {

class LayerNorm : public Module {
 public:
  LayerNorm(const Build& build, std::int64_t channels);
  Var forward(const Var& x) const;
  // For layers that use the parameters inside a function of their own.
  const Var& weight() const { return weight_; }
  const Var& bias() const { return bias_; }

 private:
  Var weight_, bias_;
};

}  // namespace tessera

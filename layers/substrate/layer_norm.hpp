// SPDX-License-Identifier: MIT
// LayerNorm over the last dims: y = (x - mean)/sqrt(var + eps) * weight + bias, biased variance.
//   x [..., *dims] any S/R placements, dims not sharded (PlacementError); y placed alike.
//   Parameters: weight [*dims] (one), bias [*dims] (zero), as far as there are any.
//   Messages: none; the parameter gradients are summands on the axes that shard x.
//   Saved: x, mean, rstd of the own positions. Statistics in at least f32.
#pragma once

#include "tessera/layers/math/transition.hpp"
#include "tessera/layers/module.hpp"

namespace tessera {

// Which parameters a norm has.
enum class Affine { none, weight, weight_and_bias };

class LayerNorm : public Module {
 public:
  LayerNorm(const Build& build, std::int64_t channels);
  LayerNorm(const Build& build, Shape dims, Affine affine, double eps = math::kLayerNormEps);
  Var forward(const Var& x) const;
  // For layers that use the parameters inside a function of their own.
  const Var& weight() const { return weight_; }
  const Var& bias() const { return bias_; }

 private:
  Shape dims_;
  double eps_;
  Var weight_, bias_;
};

}  // namespace tessera

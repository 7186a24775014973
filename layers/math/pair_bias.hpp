// SPDX-License-Identifier: MIT
// Bias of attention logits from a pair tile: bias = LN(z) W^T, one channel per head. Local, no
// mesh.
//   z channels last, [B, n, m, C]; bias channels first, [B*H, n, m] in acc = at_least_f32(z), as
//   attention reads it.
#pragma once

#include "tessera/layers/math/tile.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera::math {

struct PairBiasWeights {
  Tensor norm_weight, norm_bias;  // [C]
  Tensor projection;              // [H, C]
};

struct PairBias {
  Tensor bias;
  Statistics statistics;  // of z
};
PairBias pair_bias(const Tensor& z, const PairBiasWeights& w);

struct PairBiasGradients {
  Tensor z;                 // in z's dtype
  PairBiasWeights weights;  // in acc
};
PairBiasGradients pair_bias_backward(const Tensor& dbias, const Tensor& z,
                                     const Statistics& statistics, const PairBiasWeights& w);

}  // namespace tessera::math

// SPDX-License-Identifier: MIT
// Block functions of the SwiGLU transition: y = (silu(xh W1^T) * (xh W2^T)) W3^T, xh = LN(x).
// Local, no mesh. Positions are rows of x [positions, dim].
#pragma once

#include "tessera/runtime/tensor.hpp"

namespace tessera::math {

inline constexpr double kLayerNormEps = 1e-5;

struct TransitionWeights {
  Tensor norm_weight;  // [dim]
  Tensor norm_bias;    // [dim]
  Tensor fc1;          // [hidden, dim]
  Tensor fc2;          // [hidden, dim]
  Tensor fc3;          // [out, hidden]
};

// mean, rstd [positions] in at_least_f32(x) are written and serve the backward pass.
// y: [positions, out] in x's dtype.
Tensor transition_forward(const Tensor& x, const TransitionWeights& w, const Tensor& mean,
                          const Tensor& rstd);

struct TransitionGradients {
  Tensor x;                   // in x's dtype
  TransitionWeights weights;  // in at_least_f32(x)
};
// Recomputes xh and the hidden units from x and its statistics.
TransitionGradients transition_backward(const Tensor& dy, const Tensor& x,
                                        const TransitionWeights& w, const Tensor& mean,
                                        const Tensor& rstd);

}  // namespace tessera::math

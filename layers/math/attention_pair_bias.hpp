// SPDX-License-Identifier: MIT
// The part of attention with pair bias that works on single tensors (Jumper et al., Nature 596
// (2021), Suppl. Alg. 24 without the conditioning). Local, no mesh. Positions are rows [T, C].
//   q = s Wq^T + bq;  k = x Wk^T;  v = x Wv^T
//   y = (sigmoid(s Wg^T) * o) Wo^T, with o the result of attention
// Products in the dtype of s with weights cast to it; gradients in acc = at_least_f32(s).
#pragma once

#include "tessera/runtime/tensor.hpp"

namespace tessera::math {

struct HeadWeights {
  Tensor q, q_bias, k, v, g, o;  // [C, C], the bias [C]
};

Tensor project_queries(const Tensor& s, const HeadWeights& w);
// Writes k and v into the first 2C columns of keys [T, 2C or more].
void project_keys(const Tensor& x, const HeadWeights& w, const Tensor& keys);

Tensor gated_output(const Tensor& s, const Tensor& o, const HeadWeights& w);

struct GatedOutputGradients {
  Tensor o;           // [T, C] in acc
  Tensor gate;        // of s Wg^T, [T, C] in acc
  Tensor projection;  // of Wo
};
GatedOutputGradients gated_output_backward(const Tensor& dy, const Tensor& s, const Tensor& o,
                                           const HeadWeights& w);

// Gradients of q [T, C], of k and v side by side [U, 2C] and of the gate [T, C], all in acc, lead
// back to s [T, C] and x [U, C].
struct ProjectionGradients {
  Tensor s, x;                // in the dtype of s
  Tensor q, q_bias, k, v, g;  // of the weights, in acc
};
ProjectionGradients projections_backward(const Tensor& dq, const Tensor& dkeys, const Tensor& dgate,
                                         const Tensor& s, const Tensor& x, const HeadWeights& w);

}  // namespace tessera::math

// SPDX-License-Identifier: MIT
// Block functions of triangle multiplication (Jumper et al., Nature 596 (2021), Suppl. Alg. 11, 12,
// in the gated form of the Boltz-2 class of models). Local, no mesh.
//
//   xh = LN_in(x);  h = (xh Wp^T) * sigmoid(xh Wg^T) * mask;  a = h[..., :D], b = h[..., D:]
//   o = contraction of a and b (schedule; layers/trunk/triangle_multiplication.cpp)
//   y = (LN_out(o) Wpo^T) * sigmoid(xh Wgo^T)
//
// Layouts. x, y: channels last, [B, n, m, D]. a, b, o and their gradients: channels first,
// [B*D, n, m], one matrix per sample and channel: the layout that the batched product consumes and
// in which tiles travel. The projections write it directly.
#pragma once

#include "tessera/layers/math/tile.hpp"

namespace tessera::math {

struct TriangleWeights {
  Tensor norm_in_weight;   // [D]
  Tensor norm_in_bias;     // [D]
  Tensor p_in;             // [2D, D]
  Tensor g_in;             // [2D, D]
  Tensor norm_out_weight;  // [D]
  Tensor norm_out_bias;    // [D]
  Tensor p_out;            // [D, D]
  Tensor g_out;            // [D, D]
};

struct TriangleFactors {
  Tensor a, b;            // [B*D, n, m] in x's dtype
  Statistics statistics;  // of x
};
TriangleFactors triangle_project(const Tensor& x, const Tensor& mask, const TriangleWeights& w);

struct TriangleOutput {
  Tensor y;               // [B, n, m, D] in x's dtype
  Statistics statistics;  // of o
};
TriangleOutput triangle_output(const Tensor& x, const Statistics& x_statistics, const Tensor& o,
                               const TriangleWeights& w);

// Gradients of triangle_output. The path of the output gate into xh is handed on to the second
// half, which adds it to the path through a and b before the one backward pass of LN_in.
struct TriangleOutputGradients {
  Tensor o;   // [B*D, n, m] in acc
  Tensor xh;  // [B, n, m, D] in acc: the gate's part
  Tensor norm_out_weight, norm_out_bias, p_out, g_out;
};
TriangleOutputGradients triangle_output_backward(const Tensor& dy, const Tensor& x,
                                                 const Statistics& x_statistics, const Tensor& o,
                                                 const Statistics& o_statistics,
                                                 const TriangleWeights& w);

struct TriangleProjectGradients {
  Tensor x;  // in x's dtype
  Tensor norm_in_weight, norm_in_bias, p_in, g_in;
};
// `dxh` is consumed (overwritten).
TriangleProjectGradients triangle_project_backward(const Tensor& da, const Tensor& db,
                                                   const Tensor& dxh, const Tensor& x,
                                                   const Tensor& mask,
                                                   const TriangleFactors& factors,
                                                   const TriangleWeights& w);

}  // namespace tessera::math

// SPDX-License-Identifier: MIT
// Block functions of triangle attention (Jumper et al., Nature 596 (2021), Suppl. Alg. 13, 14, in
// the form of the Boltz-2 class of models). Local, no mesh.
//
//   xh = LN(x);  t = xh Wb^T;  q, k, v, g = xh W^T;  y = (o * sigmoid(g)) Wo^T
//   o = attention within each row, bias t (layers/math/attention.hpp, layers/trunk)
//
// Layouts. Everything is in the order of the attention, [B, R, Q, channels]: R rows that attend for
// themselves, Q queries each. For the starting node that is the tile itself, for the ending node
// its transpose: x, y and their gradients may be views of any strides but 1 in the channels; all
// others are contiguous. t comes heads first, [H*B, R, Q].
#pragma once

#include "tessera/layers/math/tile.hpp"

namespace tessera::math {

struct TriangleAttentionWeights {
  Tensor norm_weight, norm_bias;  // [C]
  Tensor bias;                    // [H, C]
  Tensor q, k, v;                 // [H*c, C]
  Tensor o;                       // [C, H*c]
  Tensor g;                       // [H*c, C]
};

struct NormalizedTile {
  Tensor xh;  // [B, R, Q, C] in x's dtype
  Tensor t;   // [H*B, R, Q] in x's dtype
  Statistics statistics;
};
// With given statistics they are used again, else formed.
NormalizedTile triangle_attention_normalize(const Tensor& x, const TriangleAttentionWeights& w,
                                            const Statistics& known = {});

// Wk and Wv in one matrix, [H, 2, c, C]: a group of heads is a part of it, and one product gives
// all that it needs of a key. The way back of its gradient.
Tensor stack_keys(const Tensor& k, const Tensor& v, std::int64_t heads);
struct KeyWeights {
  Tensor k, v;
};
KeyWeights unstack_keys(const Tensor& stacked);

// y from o [B, R, Q, H*c]; y is written.
void triangle_attention_output(const Tensor& xh, const Tensor& o, const TriangleAttentionWeights& w,
                               const Tensor& y);

struct TriangleAttentionOutputGradients {
  Tensor o;                   // [B, R, Q, H*c] in acc
  Tensor xh;                  // [B, R, Q, C] in acc: the gate's part
  Tensor o_weight, g_weight;  // in acc
};
TriangleAttentionOutputGradients triangle_attention_output_backward(
    const Tensor& dy, const Tensor& xh, const Tensor& o, const TriangleAttentionWeights& w);

// Of y = x W^T, with x [rows, in] and dy [rows, out], dy in acc: dx += dy W, dw += dy^T x, both in
// acc.
void projection_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& dx,
                         const Tensor& dw);

struct TriangleAttentionInputGradients {
  Tensor norm_weight, norm_bias, bias;  // in acc
};
// From the gradients of xh, as keys' part (x's dtype) and all others (acc, consumed), and of t (x's
// dtype). dx is written.
TriangleAttentionInputGradients triangle_attention_input_backward(
    const Tensor& dxh, const Tensor& dxh_keys, const Tensor& dt, const NormalizedTile& tile,
    const Tensor& x, const TriangleAttentionWeights& w, const Tensor& dx);

}  // namespace tessera::math

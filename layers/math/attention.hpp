// SPDX-License-Identifier: MIT
// Attention over keys that come in blocks, with a softmax that is formed on the way (M. Milakov and
// N. Gimelshein, Online normalizer calculation for softmax, 2018; T. Dao et al., FlashAttention,
// 2022). Local, no mesh. Logits and weights exist in tiles that stay in cache. Rows are independent
// problems (a row of a pair tile, a sample, a window); acc is at_least_f32(q).
//
//   a = scale q.k + infinity (mask - 1) + bias;   out = sum_k exp(a - m) v / sum_k exp(a - m)
//
// Masks are finite numbers: nothing is skipped, and rows whose keys are all masked are rows like
// any other. Next to terms like -1e9 the logarithm of the sum would be lost in one number with the
// maximum, so they stay two.
#pragma once

#include <functional>

#include "tessera/runtime/tensor.hpp"

namespace tessera::math {

struct AttentionOperands {
  Tensor q;     // [R, J, H, c], unit stride in c: R rows of J queries
  Tensor k, v;  // [R, K, H, c], as q and in its dtype
  Tensor mask;  // [R, J, K] or undefined (ones); unit stride in K, any others (expanded key masks)
  Tensor bias;  // [Rb, H, J, K] or undefined (none): R/Rb consecutive rows share one; unit in K
  double scale = 1;
  double infinity = 0;
  bool mask_first = false;  // (scale q.k + mask) + bias, else (scale q.k + bias) + mask
};

// All in acc, contiguous.
struct AttentionState {
  Tensor maximum;   // [R, H, J]     of the logits so far
  Tensor sum;       // [R, H, J]     of exp(logit - maximum)
  Tensor weighted;  // [R, J, H, c]  of exp(logit - maximum) v
};
AttentionState make_state(const Tensor& q);

// Brings a block of keys into the state; the `first` one overwrites it. `progress` (or nothing) is
// called now and then from the calling thread. Blocks may come in any order. ShapeError.
void attention_block(const AttentionOperands& operands, bool first, const AttentionState& state,
                     const std::function<void()>& progress);

// In place: `weighted` becomes the output (weighted / sum), `sum` the logarithm of the sum.
void finish(const AttentionState& state);

// Added to, in acc; unit stride in the last dim, any others. dbias undefined: not wanted.
struct AttentionGradients {
  Tensor dq;      // [R, J, H, c]
  Tensor dk, dv;  // [R, K, H, c]
  Tensor dbias;   // [Rb, H, J, K]
};
// The part of a block of keys in the gradients, from the finished state of all keys:
//   p = exp((a - maximum) - log_sum);  da = p (dout.v - d)
//   dq += scale da k;  dk += scale da^T q;  dv += p^T dout;  dbias += da, over the rows that share
//   it
// dout [R, J, H, c] in any dtype, d = row_dots(dout, out).
void attention_block_backward(const AttentionOperands& operands, const Tensor& maximum,
                              const Tensor& log_sum, const Tensor& dout, const Tensor& d,
                              const AttentionGradients& gradients,
                              const std::function<void()>& progress);

// sum_c a b of [R, J, H, c] and the same: [R, H, J] in acc.
Tensor row_dots(const Tensor& a, const Tensor& b);

}  // namespace tessera::math

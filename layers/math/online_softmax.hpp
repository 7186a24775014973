// SPDX-License-Identifier: MIT
// Softmax over keys that come in blocks (M. Milakov and N. Gimelshein, Online normalizer
// calculation for softmax, 2018). The state of a set of keys is the mean of their values with
// softmax weights, and the logarithm of the sum of exponentials as its maximum and the rest: masks
// add numbers like -1e9 to logits, next to which the rest would be lost in a sum.
#pragma once

#include "tessera/runtime/tensor.hpp"

namespace tessera::math {

struct SoftmaxState {
  Tensor mean;     // [..., D]   sum of exp(logit - maximum) value / sum of exp(logit - maximum)
  Tensor log_sum;  // [..., 1]   log of the sum of exp(logit - maximum)
  Tensor maximum;  // [..., 1]
};

// One block: logits [M, K] or [B, M, K] with finite masks added, values [K, D] or [B, K, D]. In at
// least f32. Local.
SoftmaxState softmax_block(const Tensor& logits, const Tensor& values);

// The state of the keys of both. A state without tensors holds no keys: it becomes the block, in at
// least f32; after that it keeps its dtype. Updated in place. Local. ShapeError: unequal leading
// dims, or some tensors of a state but not all.
void update(SoftmaxState& state, const SoftmaxState& block);

}  // namespace tessera::math

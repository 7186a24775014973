// SPDX-License-Identifier: MIT
// Bias of attention logits from pairs: t = LN(z) W^T, one channel per head.
//   z [.., n, m, C] any S/R placements, C whole; t [.., n, m, H] placed alike, in at least f32. In
//   memory t is [.., H, n, m], as attention reads it.
//   Parameters, in order: 0.weight, 0.bias [C]; 1.weight [H, C].
//   Messages: none; the parameter gradients are summands on the axes that shard z.
//   Saved: z, mean, rstd of the own positions.
#pragma once

#include "tessera/layers/substrate/layer_norm.hpp"
#include "tessera/layers/substrate/views.hpp"
#include "tessera/layers/substrate/weight.hpp"

namespace tessera {

class PairBias : public Module {
 public:
  PairBias(const Build& build, std::int64_t channels, std::int64_t heads);
  Var forward(const Var& z) const;

 private:
  LayerNorm norm_;
  Weight projection_;
};

// Between the two orders: the own tiles of t [.., n, m, H] as [tiles, H, n, m], a copy only if they
// do not lie so in memory; and back.
Tensor tiles_by_head(const Tensor& t);
DTensor from_tiles_by_head(const Tensor& tiles, const Form& t);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// Transition (SwiGLU): y = (silu(xh fc1^T) * (xh fc2^T)) fc3^T, xh = LN(x). The caller adds the
// residual.
//   x [..., dim] any S/R placements, last dim not sharded; y [..., out] placed alike.
//   Parameters, in order: norm.weight, norm.bias [dim]; fc1.weight, fc2.weight [hidden, dim];
//   fc3.weight [out, hidden].
//   Messages: none; the parameter gradients are summands on the axes that shard x.
//   Saved (the own block): x (dim channels) and the statistics of the norm (2, in acc);
//   the hidden units are formed again.
//   Source: Shazeer, arXiv:2002.05202; Boltz-2 class of models.
#pragma once

#include "tessera/layers/substrate/layer_norm.hpp"
#include "tessera/layers/substrate/weight.hpp"

namespace tessera {

class Transition : public Module {
 public:
  // out < 0: out = dim.
  Transition(const Build& build, std::int64_t dim, std::int64_t hidden, std::int64_t out = -1);
  Var forward(const Var& x) const;

 private:
  LayerNorm norm_;
  Weight fc1_, fc2_, fc3_;
};

}  // namespace tessera

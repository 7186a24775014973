// SPDX-License-Identifier: MIT
// Each position of a pair tensor receives the mean of its row through a gate:
//   y[b,i,j,c] = sigmoid(weight[c] x[b,i,j,c]) * mean_k x[b,i,k,c]
//   x, y [B, N, N, C] as pair tensors (S0,S1,S2); weight [C].
//   Messages: the sums of the rows along cp1, once forward, once backward.
//   Saved: x and the means of the own rows.
#pragma once

#include <tessera/layers/module.hpp>

class GatedRowMean : public tessera::Module {
 public:
  GatedRowMean(const tessera::Build& build, std::int64_t channels);
  tessera::Var forward(const tessera::Var& x) const;

 private:
  tessera::Var weight_;
};

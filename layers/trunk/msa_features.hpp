// SPDX-License-Identifier: MIT
// The projection of the features of an MSA, without the one-hot tensor:
//   y = one_hot(msa, classes) W[:, :classes]^T + sum_k numbers[k] W[:, classes + k]^T
//   msa [B, S, N] i64 or i32 in [0, classes) (RangeError of all ranks), numbers [B, S, N] each
//   (deletions and the like), all msa (S0,S1,S2); y [B, S, N, channels] msa, in the dtype of the
//   numbers. Parameters: weight [channels, classes + numbers].
//   Messages: none; the gradient of the weight is a summand on dp, cp0 and cp1. The features have
//   none (GradientError). Saved: the features.
#pragma once

#include "tessera/layers/module.hpp"

namespace tessera {

class MsaFeatures : public Module {
 public:
  MsaFeatures(const Build& build, std::int64_t classes, std::int64_t numbers,
              std::int64_t channels);
  Var forward(const Var& msa, const std::vector<Var>& numbers) const;

 private:
  std::int64_t classes_, numbers_;
  Var weight_;
};

}  // namespace tessera

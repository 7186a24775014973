// SPDX-License-Identifier: MIT
// Rows of a table by index, and the indices as indicators. Indices are i64 or i32 (TypeError) and
// in range: a RangeError of all ranks if one of any rank is not. Messages: none.
#pragma once

#include <optional>

#include "tessera/layers/module.hpp"

namespace tessera {

// y[..., :] = weight[idx[...], :].
//   idx: any shape, any S/R placements; y [..., channels] placed alike, in the dtype of the weight.
//   Parameters: weight [count, channels]. The row `padding` gets no gradient.
//   Saved: idx. The gradient of the weight is a summand on the axes that shard idx.
class Embedding : public Module {
 public:
  Embedding(const Build& build, std::int64_t count, std::int64_t channels,
            std::optional<std::int64_t> padding = {});
  Var forward(const Var& idx) const;

 private:
  Var weight_;
  std::optional<std::int64_t> padding_;
};

// 1 at the index, else 0: idx [...] to i64 [..., classes], row-major, the new dim whole. The number
// of classes is the same on all ranks, hence never taken from the indices. No gradient.
Var shardwise_one_hot(const Var& idx, std::int64_t classes);

}  // namespace tessera

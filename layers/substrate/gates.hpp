// SPDX-License-Identifier: MIT
// Gates that are made of several elementwise operations, and dropout. Messages: none.
#pragma once

#include "tessera/autodiff/tape.hpp"
#include "tessera/runtime/random.hpp"

namespace tessera {

// x [..., 2C] is (u, w): u * w * sigmoid(w) [..., C].
//   x: floating, any S/R placements, last dim not sharded (PlacementError) and even (ShapeError).
//   Saved: x; its parts and the sigmoid are formed again.
Var swiglu(const Var& x);

// Which positions of a pair tensor are dropped together.
enum class DropoutMask {
  rows,     // one decision for each [b, n]: mask [B, N, 1, 1] (S0,S1,R)
  columns,  // one for each [b, ., m]: mask [B, 1, M, 1] (S0,R,S2)
};
struct Dropout {
  double p = 0;  // chance of being dropped, 0 <= p < 1 (RangeError)
  DropoutMask mask = DropoutMask::rows;
  bool training = true;      // if not, the result is x
  RandomStream stream = {};  // another one for every draw, the same on all ranks
};
// x keep / (1 - p) of a pair tensor x [B, N, M, C] (S0,S1,S2), floating. The decisions depend on
// the stream and on global indices only: ranks that share a row (column) decide alike without a
// message, and every mesh draws what one rank draws. Saved: the mask (bool).
Var dropout(const Var& x, const Dropout& options);
// With given samples of the shape and placements of the mask, kept where they are >= p. They have
// no gradient (GradientError); ShapeError, PlacementError.
Var dropout(const Var& x, const Dropout& options, const Var& samples);

}  // namespace tessera

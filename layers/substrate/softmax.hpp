// SPDX-License-Identifier: MIT
// Softmax along a dim that is not sharded (PlacementError); negative dims count from the end
// (RangeError). Floating x (TypeError), formed in at least f32; the result is placed as x and has
// its dtype and order of dims in memory. Messages: none. Saved: the result.
#pragma once

#include "tessera/autodiff/tape.hpp"

namespace tessera {

Var shardwise_softmax(const Var& x, int dim = -1);
Var shardwise_log_softmax(const Var& x, int dim = -1);

}  // namespace tessera

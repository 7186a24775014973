// SPDX-License-Identifier: MIT
// y = x * sigmoid(g), elementwise.
//   x, g: same mesh, shape and placements, no Partial; y placed alike, in the wider dtype.
//   Messages: none. Saved: g and, if g requires a gradient, x; sigmoid(g) is formed again.
#pragma once

#include "tessera/autodiff/tape.hpp"

namespace tessera {

Var sigmoid_gate(const Var& x, const Var& g);

}  // namespace tessera

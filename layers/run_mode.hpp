// SPDX-License-Identifier: MIT
// How a forward pass of layers is run: plain data that a caller hands down.
#pragma once

#include <string_view>

#include "tessera/runtime/random.hpp"

namespace tessera {

struct RunMode {
  // Dropout is active.
  bool training = false;
  // Of this call, the same on all ranks and another one for every step and recycle. A part of a
  // layer draws from part(name): streams follow from the layer path, so that a run is repeatable
  // and does not depend on the mesh or on what else was drawn.
  RandomStream stream = {};
  // Blocks of stacks keep their inputs only (autodiff/checkpoint.hpp).
  bool checkpoint = false;

  RunMode part(std::string_view name) const;
};

}  // namespace tessera

// SPDX-License-Identifier: MIT
// The device that a test of this folder runs on: a GPU, or its imitation.
#pragma once

#include <cstdlib>

#include "tessera/runtime/device.hpp"

namespace tessera {

inline Device test_device() {
  const char* chosen = std::getenv("TESSERA_TEST_DEVICE");
  return parse_device(chosen != nullptr ? chosen : "cuda");
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
// The reductions along dims (ops.hpp).
#pragma once

#include <cstdint>

namespace tessera {

enum class Fold : std::uint8_t { sum, maximum, minimum, argmax };

}  // namespace tessera

// SPDX-License-Identifier: MIT
// Cases of the losses.
#pragma once

#include "tessera/harness/case.hpp"

namespace tessera::harness {

std::vector<Case> loss_cases();

}  // namespace tessera::harness

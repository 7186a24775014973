// SPDX-License-Identifier: MIT
// The watch for NaN and infinity, on with TESSERA_CHECK_FINITE=1. Off, it costs one branch.
#pragma once

#include "tessera/mesh/dtensor.hpp"

namespace tessera {

bool finite_watch();
void set_finite_watch(bool on);  // for tests; equal on all ranks

// Collective over the mesh of x. NonFiniteError on every rank if a value is not finite on any:
// names function, tensor and the global index of the first one on the lowest rank that has one.
// Called for the operands, results and gradients of every function, so that the first one is named.
void check_finite(const DTensor& x, const char* function, const std::string& tensor);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// TESSERA_CHECK_REPLICAS=1: replicated values are compared bitwise, by checksum, where layers begin
// and end. A replica that drifted is otherwise seen only in the numbers, much later.
#pragma once

#include "tessera/mesh/dtensor.hpp"

namespace tessera {

// ReplicaError with the same text on all ranks unless x is bitwise equal on the ranks of every axis
// on which it is replicated. Does nothing, at the cost of a branch, unless asked for. Collective;
// not an operation of the ledger.
void check_replicas(const DTensor& x, const char* function, const char* tensor);

}  // namespace tessera

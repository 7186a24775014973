// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tessera/runtime/memory.hpp"

namespace tessera {

// Throws OutOfMemoryError: the layer that asked, `problem`, and the scopes of the ledger that hold
// most, so that a user sees what to cut.
[[noreturn]] void out_of_memory(std::string problem,
                                const std::map<memory_ledger::Key, MemoryCount>& entries);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// What the memory ledgers of all ranks say about one run, by module path and purpose.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera::harness {

// Bytes of one rank: the largest over ranks. Peaks of different entries are of different moments.
struct MemoryEntry {
  std::string scope;  // module path; "" for what is made outside of layers: inputs, parameters
  Purpose purpose = Purpose::activation;
  std::int64_t live = 0;  // when forward has ended
  std::int64_t peak = 0;  // of forward and backward
};

// Collective; equal on all ranks. `forward` and `end`: memory_ledger::entries() at these moments.
using MemoryEntries = std::map<memory_ledger::Key, MemoryCount>;
std::vector<MemoryEntry> memory_over_ranks(const DeviceMesh& mesh, const MemoryEntries& forward,
                                           const MemoryEntries& end);

std::string memory_table(const std::string& title, const std::vector<MemoryEntry>& entries);

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
// Lockstep (TESSERA_LOCKSTEP=1): before an operation starts, all ranks of the mesh agree on what it
// is, so that a rank that took another branch is an error and not a hang. For mesh/ only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/mesh/collectives.hpp"

namespace tessera {

// What a collective works on: equal on all ranks of a group, which goes by its first rank.
struct Content {
  DType dtype = DType::boolean;
  std::int64_t elements = 0;
  int group = 0;
};

// LockstepError with the same text on every rank unless they agree on `step` and on what travels:
// in a collective each group on its content, in an exchange every two ranks on their messages.
void agree_on_collective(const DeviceMesh& mesh, const CommRecord& step, const Content& content);
void agree_on_exchange(const DeviceMesh& mesh, const CommRecord& step,
                       const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives);

}  // namespace tessera

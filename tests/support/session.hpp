// SPDX-License-Identifier: MIT
// How the ranks of one test program report as one.
#pragma once

#include <optional>
#include <string>

#include "tessera/mesh/communicator.hpp"

namespace tessera::test {

// Set by main() while the ranks run; test_world() of support/mpi.hpp is this.
extern std::optional<Communicator> world;

// Collective, once. Sends stdout of this rank to `<name>.<n>ranks.rank<r>.log`; rank 0 keeps the
// terminal. stderr is left alone, so that a sanitizer or a dying library is heard from every rank.
void begin(const std::string& program);

// Collective: the largest code of all ranks. If it is not 0 and `what` failed, the lowest failing
// rank shows its log and says who failed. A failing rank that waits in vain, because the others
// hang in a message it will never send, ends the job.
int agree(int code, const std::string& what = {});

}  // namespace tessera::test

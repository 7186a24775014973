// SPDX-License-Identifier: MIT
// How the ranks of one test program report as one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/mesh/communicator.hpp"

namespace tessera::test {

// Set by main() while the ranks run; test_world() of support/mpi.hpp is this.
extern std::optional<Communicator> world;

// The numbers of ranks that this test program is for, ended by a 0: the line `// ranks:` of its
// source, which cmake/testing.cmake puts into the program.
extern const int rank_counts[];

// Collective, once. Sends stdout of this rank to `<name>.<n>ranks.rank<r>.log`; rank 0 keeps the
// terminal. stderr is left alone, so that a sanitizer or a dying library is heard from every rank.
void begin(const std::string& program);

// What the ranks found together, alike on all of them.
struct Verdict {
  int code = 0;             // the largest of all ranks
  std::vector<int> failed;  // the ranks whose code is not 0
  std::string message;      // "failed on rank 2 of 4"; empty if none failed
  std::string text;         // what each of them has to say
};

// Collective. If a code is not 0, the lowest failing rank shows its log and says who failed in
// `what` (if it has a name). A failing rank that waits in vain, because the others hang in a
// message that it will never send, ends the job, after `last_words`.
Verdict agree(
    int code, const std::string& what = {}, const std::string& text = {},
    const std::function<void()>& last_words = [] {});

}  // namespace tessera::test

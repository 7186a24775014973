// SPDX-License-Identifier: MIT
// ranks: 4
// Tests that fail, to show that the harness would notice; see tests/support/failing.cmake.
#include <csignal>
#include <cstdio>
#include <stdexcept>

#include "support/mpi.hpp"

namespace tessera {

TEST_CASE("one rank checks in vain", "[.check]") {
  INFO("a <message> & \"more\"");
  CHECK(test_rank() != 2);
}

TEST_CASE("this one holds", "[.check]") {
  CHECK(true_on_all_ranks(true));
}

TEST_CASE("one rank throws while the others wait for it", "[.throw]") {
  if (test_rank() == 2) throw std::runtime_error("the rank is lost");
  CHECK(true_on_all_ranks(true));
}

TEST_CASE("one rank dies", "[.die]") {
  if (test_rank() == 2) {
    std::fprintf(stderr, "rank 2 says farewell\n");
    std::raise(SIGKILL);
  }
  CHECK(true_on_all_ranks(true));
}

}  // namespace tessera

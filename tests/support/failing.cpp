// SPDX-License-Identifier: MIT
// Tests that fail, to show that the harness would notice; see tests/support/failing.cmake.
#include <stdexcept>

#include "support/mpi.hpp"

namespace tessera {

TEST_CASE("one rank checks in vain", "[.check]") {
  CHECK(test_rank() != 2);
}

TEST_CASE("one rank throws while the others wait for it", "[.throw]") {
  if (test_rank() == 2) throw std::runtime_error("the rank is lost");
  CHECK(true_on_all_ranks(true));
}

}  // namespace tessera

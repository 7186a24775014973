// SPDX-License-Identifier: MIT
// ranks: 1
#include "tessera/harness/case.hpp"

#include "support/catch.hpp"
#include "support/errors.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

Case own_case(std::string name) {
  Case c = *find_case("linear");
  c.name = std::move(name);
  return c;
}

}  // namespace

TEST_CASE("a case of one's own is found like a built-in one") {
  const std::size_t before = all_cases().size();
  CHECK(find_case("own.linear") == nullptr);
  add_case(own_case("own.linear"));
  CHECK(all_cases().size() == before + 1);
  REQUIRE(find_case("own.linear") != nullptr);
  CHECK(select_cases({"own.*"}).size() == 1);
}

TEST_CASE("a case of one's own needs a name that nobody has, a problem and a layer") {
  const std::size_t before = all_cases().size();
  require_error<UsageError>([] { add_case(own_case("transition")); }, "add_case", "'transition'");
  require_error<UsageError>([] { add_case(own_case("")); }, "needs a name");
  Case empty;
  empty.name = "own.nothing";
  require_error<UsageError>([&] { add_case(empty); }, "'own.nothing'", "a way to build");
  CHECK(all_cases().size() == before);
}

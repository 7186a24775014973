// SPDX-License-Identifier: MIT
// ranks: 1 2 4 6
// The support code itself.
#include <cstdlib>
#include <set>
#include <string>

#include "support/files.hpp"
#include "support/mpi.hpp"

namespace tessera {

TEST_CASE("the world has as many ranks as CTest asked for") {
  const char* expected = std::getenv("TESSERA_TEST_RANKS");
  if (expected != nullptr) REQUIRE(std::to_string(test_ranks()) == expected);
  REQUIRE(test_rank() >= 0);
  REQUIRE(test_rank() < test_ranks());
}

TEST_CASE("the meshes of a rank count are all its factorisations into three") {
  const auto meshes = test_meshes(6);
  std::set<std::string> seen;
  for (const auto& mesh : meshes) {
    CHECK(mesh.ranks() == 6);
    seen.insert(std::to_string(mesh.dp) + ' ' + std::to_string(mesh.cp0) + ' ' +
                std::to_string(mesh.cp1));
  }
  CHECK(seen.size() == meshes.size());
  CHECK(seen.size() == 9);
  CHECK(seen.count("1 2 3") == 1);
  CHECK(seen.count("2 1 3") == 1);
  CHECK(test_meshes(1).size() == 1);
}

TEST_CASE("the sub-world leaves out rank 0 and runs backwards") {
  const Communicator sub = test_subworld();
  if (test_rank() == 0) {
    REQUIRE(sub.size() == 0);
  } else {
    REQUIRE(sub.size() == test_ranks() - 1);
    REQUIRE(sub.rank() == test_ranks() - 1 - test_rank());
  }
}

TEST_CASE("agreement between ranks sees the odd one out") {
  const bool last = test_rank() == test_ranks() - 1;
  CHECK(true_on_all_ranks(true));
  CHECK_FALSE(true_on_all_ranks(!last));
  CHECK(same_on_all_ranks("one text"));
  const std::string mine = last ? "another text" : "one text";
  CHECK(same_on_all_ranks(mine) == (test_ranks() == 1));
}

TEST_CASE("errors are matched by type and by what they mention") {
  require_error<ShapeError>(
      [] { throw ShapeError({.problem = "sizes differ", .tensor = "x", .found = "[2, 3]"}); }, "x",
      "[2, 3]");
  CHECK(mentions(RangeError({.problem = "dim 3"}), "dim", "3"));
  CHECK_FALSE(mentions(RangeError({.problem = "dim 3"}), "dim", "4"));
}

TEST_CASE("a scratch directory is new, and gone afterwards") {
  std::filesystem::path path;
  {
    const ScratchDirectory scratch;
    path = scratch.path();
    write_file(scratch / "a", std::string("x\0y", 3));
    CHECK(read_file(scratch / "a") == std::string("x\0y", 3));
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

}  // namespace tessera

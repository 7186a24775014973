// SPDX-License-Identifier: MIT
// ranks: 1
#include "support/catch.hpp"
#include "tessera/mesh/comm_ledger.hpp"
#include "tessera/mesh/placement.hpp"

using namespace tessera;

TEST_CASE("placements as text", "[placement]") {
  CHECK(format(Placement(Shard{1})) == "S(1)");
  CHECK(format(Placement(Replicate{})) == "R");
  CHECK(format(Placement(Partial{ReduceOp::avg})) == "P(avg)");
  CHECK(format(Placements{Shard{0}, Shard{1}, Replicate{}}) == "(S0,S1,R)");
  CHECK(format(Placements{Partial{}, Replicate{}}) == "(P(sum),R)");
  CHECK(format(Placements{}) == "()");
}

TEST_CASE("placements compare by value", "[placement]") {
  CHECK(Placement(Shard{1}) == Placement(Shard{1}));
  CHECK(Placement(Shard{1}) != Placement(Shard{2}));
  CHECK(Placement(Partial{ReduceOp::sum}) != Placement(Partial{ReduceOp::avg}));
  CHECK(Placement(Replicate{}) != Placement(Partial{}));
  CHECK(is_shard(Shard{2}, 2));
  CHECK_FALSE(is_shard(Shard{2}, 1));
  CHECK_FALSE(is_shard(Replicate{}));
  CHECK(is_replicate(Replicate{}));
  CHECK(is_partial(Partial{}));
}

TEST_CASE("the standard placements", "[placement]") {
  CHECK(format(pair_placements()) == "(S0,S1,S2)");
  CHECK(format(single_placements()) == "(S0,S1,R)");
  CHECK(format(single_t_placements()) == "(S0,R,S1)");
  CHECK(format(replicated_placements()) == "(R,R,R)");
}

TEST_CASE("totals of the ledger add up by operation and axis", "[placement]") {
  std::vector<CommRecord> records(4);
  records[0].op = records[2].op = records[3].op = "shift";
  records[1].op = "all_reduce";
  records[0].axis = records[2].axis = records[1].axis = "cp0";
  records[3].axis = "cp1";
  for (CommRecord& r : records) {
    r.messages = 1;
    r.bytes = 10;
  }
  const std::vector<CommTotal> sums = totals(records);
  REQUIRE(sums.size() == 3);
  CHECK(sums[0].op == "shift");
  CHECK(sums[0].count == 2);
  CHECK(sums[0].bytes == 20);
  CHECK(sums[1].op == "all_reduce");
  CHECK(sums[2].axis == "cp1");
  CHECK(sums[2].messages == 1);
}

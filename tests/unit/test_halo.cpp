// SPDX-License-Identifier: MIT
// ranks: 1
// Plans of halos for all ranks at once.
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/layers/schedule/halo.hpp"

using namespace tessera;

namespace {

// Every row that a rank needs comes from exactly one place, and what is received is sent.
void check_consistent(const std::vector<HaloPlan>& plans) {
  const int parts = static_cast<int>(plans.size());
  for (int me = 0; me < parts; ++me) {
    const HaloPlan& plan = plans[static_cast<std::size_t>(me)];
    for (std::int64_t row = plan.needed.begin; row < plan.needed.end; ++row) {
      int sources = plan.owned.begin <= row && row < plan.owned.end;
      for (const HaloPlan::Part& part : plan.receives)
        sources += part.rows.begin <= row && row < part.rows.end;
      REQUIRE(sources == 1);
    }
    for (const HaloPlan::Part& part : plan.receives) {
      int found = 0;
      for (const HaloPlan::Part& other : plans[static_cast<std::size_t>(part.coordinate)].sends)
        found += other.coordinate == me && other.rows == part.rows;
      REQUIRE(found == 1);
    }
  }
  std::int64_t sent = 0, received = 0;
  for (const HaloPlan& plan : plans) {
    sent += plan.sent_rows();
    received += plan.received_rows();
  }
  CHECK(sent == received);
}

}  // namespace

TEST_CASE("window halos of every rank fit together") {
  for (int parts = 1; parts <= 7; ++parts)
    for (std::int64_t own = 1; own <= 4; ++own)
      for (std::int64_t h = 2; h <= 14; h += 2) {
        INFO(parts << " ranks of " << own << " windows of " << h);
        std::vector<HaloPlan> plans;
        for (int me = 0; me < parts; ++me)
          plans.push_back(plan_window_halo(own * parts, h, parts, me));
        check_consistent(plans);
        // Rows on either side: h/2 - 1, cut off at the ends.
        for (std::int64_t me = 0; me < parts; ++me) {
          const HaloPlan& plan = plans[static_cast<std::size_t>(me)];
          CHECK(plan.owned.begin - plan.needed.begin == std::min(h / 2 - 1, 2 * own * me));
          CHECK(plan.needed.end - plan.owned.end ==
                std::min(h / 2 - 1, 2 * own * (parts - 1 - me)));
        }
      }
}

TEST_CASE("the windows of atoms: two hops where shards are narrower than the halo") {
  // W = 32, H = 128: h = 8; one window per rank, so that 3 half-windows of halo are 2 ranks.
  const HaloPlan plan = plan_window_halo(7, 8, 7, 3);
  REQUIRE(plan.receives.size() == 4);
  CHECK(plan.receives[0].coordinate == 1);
  CHECK(plan.receives[0].rows == Interval{3, 4});
  CHECK(plan.receives[1].rows == Interval{4, 6});
  CHECK(plan.receives[2].rows == Interval{8, 10});
  CHECK(plan.receives[3].coordinate == 5);
  CHECK(plan.receives[3].rows == Interval{10, 11});
}

TEST_CASE("windows that do not divide by the ranks") {
  require_error<UnevenError>([] { plan_window_halo(5, 4, 2, 0); }, "plan_window_halo", "5 windows",
                             "multiple of 2");
}

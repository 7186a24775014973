// SPDX-License-Identifier: MIT
// ranks: 1
// Plans of halos for all ranks at once.
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/layers/schedule/halo.hpp"
#include "tessera/layers/schedule/interval.hpp"

using namespace tessera;

namespace {

// The plan of coordinate `me` of an axis of so many ranks.
IntervalPlan plan_window_halo(std::int64_t windows, std::int64_t h, int parts, int me) {
  return plan_intervals(DeviceMesh::dry_run({1, parts, 1}, me), kCp0, 2 * windows,
                        window_needs(windows, h, parts));
}

// Every row that a rank needs comes from exactly one place, and what is received is sent.
void check_consistent(const std::vector<IntervalPlan>& plans) {
  const int parts = static_cast<int>(plans.size());
  for (int me = 0; me < parts; ++me) {
    const IntervalPlan& plan = plans[static_cast<std::size_t>(me)];
    for (std::int64_t row = plan.need.begin; row < plan.need.end; ++row) {
      int sources = plan.own.begin <= row && row < plan.own.end;
      for (const IntervalPlan::Part& part : plan.receives)
        sources += part.region.begin <= row && row < part.region.end;
      REQUIRE(sources == 1);
    }
    for (const IntervalPlan::Part& part : plan.receives) {
      int found = 0;
      for (const IntervalPlan::Part& other : plans[static_cast<std::size_t>(part.peer)].sends)
        found += other.peer == me && other.region == part.region;
      REQUIRE(found == 1);
    }
  }
  std::int64_t sent = 0, received = 0;
  for (const IntervalPlan& plan : plans) {
    sent += rows_in(plan.sends);
    received += rows_in(plan.receives);
  }
  CHECK(sent == received);
}

}  // namespace

TEST_CASE("window halos of every rank fit together") {
  for (int parts = 1; parts <= 7; ++parts)
    for (std::int64_t own = 1; own <= 4; ++own)
      for (std::int64_t h = 2; h <= 14; h += 2) {
        INFO(parts << " ranks of " << own << " windows of " << h);
        std::vector<IntervalPlan> plans;
        for (int me = 0; me < parts; ++me)
          plans.push_back(plan_window_halo(own * parts, h, parts, me));
        check_consistent(plans);
        // Rows on either side: h/2 - 1, cut off at the ends.
        for (std::int64_t me = 0; me < parts; ++me) {
          const IntervalPlan& plan = plans[static_cast<std::size_t>(me)];
          CHECK(plan.own.begin - plan.need.begin == std::min(h / 2 - 1, 2 * own * me));
          CHECK(plan.need.end - plan.own.end == std::min(h / 2 - 1, 2 * own * (parts - 1 - me)));
        }
      }
}

TEST_CASE("the windows of atoms: two hops where shards are narrower than the halo") {
  // W = 32, H = 128: h = 8; one window per rank, so that 3 half-windows of halo are 2 ranks.
  const IntervalPlan plan = plan_window_halo(7, 8, 7, 3);
  REQUIRE(plan.receives.size() == 4);
  CHECK(plan.receives[0].peer == 1);
  CHECK(plan.receives[0].region == Interval{3, 4});
  CHECK(plan.receives[1].region == Interval{4, 6});
  CHECK(plan.receives[2].region == Interval{8, 10});
  CHECK(plan.receives[3].peer == 5);
  CHECK(plan.receives[3].region == Interval{10, 11});
}

TEST_CASE("windows that do not divide by the ranks") {
  require_error<UnevenError>([] { plan_window_halo(5, 4, 2, 0); }, "window_needs", "5 windows",
                             "multiple of 2");
}

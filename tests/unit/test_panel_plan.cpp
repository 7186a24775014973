// SPDX-License-Identifier: MIT
// ranks: 1
// The contraction engine's plan, for all ranks of many grids at once: what every rank would hold in
// every step if the messages went where the plan says.
#include <deque>
#include <set>

#include "support/catch.hpp"
#include "tessera/layers/schedule/panel_plan.hpp"

using namespace tessera;

namespace {

struct Grid {
  int rows, cols;
};
const std::vector<Grid> kGrids{{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 2}, {2, 3}, {3, 2},
                               {3, 3}, {2, 4}, {4, 2}, {4, 4}, {4, 6}, {6, 4}, {5, 7}};

// Panels of one operand on every rank; x moves along a row, y along a column, to the lower index.
struct Simulation {
  Grid grid;
  bool is_x;
  int direction;  // -1 as planned, +1 as a mistake
  std::vector<std::deque<int>> windows;

  Simulation(Grid g, bool x, int towards) : grid(g), is_x(x), direction(towards) {
    for (int i = 0; i < g.rows; ++i)
      for (int j = 0; j < g.cols; ++j) {
        const PanelPlan plan = PanelPlan::make(g.rows, g.cols, i, j);
        std::deque<int>& window = windows.emplace_back();
        for (int k = 0; k < (is_x ? plan.x_window : plan.y_window); ++k)
          window.push_back((plan.start(i, j) + k) % plan.panels);
      }
  }
  std::size_t at(int i, int j) const {
    return static_cast<std::size_t>(((i + grid.rows) % grid.rows) * grid.cols +
                                    (j + grid.cols) % grid.cols);
  }
  void step(int t) {
    std::vector<std::deque<int>> next = windows;
    for (std::deque<int>& window : next) window.pop_front();
    for (int i = 0; i < grid.rows; ++i)
      for (int j = 0; j < grid.cols; ++j) {
        const PanelPlan plan = PanelPlan::make(grid.rows, grid.cols, i, j);
        if (!(is_x ? plan.x_moves(t) : plan.y_moves(t))) continue;
        const std::size_t to = is_x ? at(i, j + direction) : at(i + direction, j);
        next[to].push_back(windows[at(i, j)].front());
      }
    windows = next;
  }
};

// Steps in which every rank has the panel that the plan says, of x and of y.
bool follows_plan(Grid grid, int direction) {
  Simulation x(grid, true, direction), y(grid, false, direction);
  const int panels = PanelPlan::make(grid.rows, grid.cols, 0, 0).panels;
  for (int t = 0; t < panels; ++t) {
    for (int i = 0; i < grid.rows; ++i)
      for (int j = 0; j < grid.cols; ++j) {
        const int expected = PanelPlan::make(grid.rows, grid.cols, i, j).panel(t);
        const std::deque<int>& own_x = x.windows[x.at(i, j)];
        const std::deque<int>& own_y = y.windows[y.at(i, j)];
        if (own_x.empty() || own_y.empty()) return false;
        if (own_x.front() != expected || own_y.front() != expected) return false;
      }
    x.step(t);
    y.step(t);
  }
  return true;
}

}  // namespace

TEST_CASE("every rank meets every panel once, of both operands in the same step") {
  for (const Grid grid : kGrids) {
    CAPTURE(grid.rows, grid.cols);
    CHECK(follows_plan(grid, -1));
    for (int i = 0; i < grid.rows; ++i)
      for (int j = 0; j < grid.cols; ++j) {
        const PanelPlan plan = PanelPlan::make(grid.rows, grid.cols, i, j);
        std::set<int> seen;
        for (int t = 0; t < plan.panels; ++t) seen.insert(plan.panel(t));
        CHECK(static_cast<int>(seen.size()) == plan.panels);
      }
  }
}

TEST_CASE("a ring that turns the other way is noticed by rings longer than two") {
  for (const Grid grid : kGrids) {
    CAPTURE(grid.rows, grid.cols);
    CHECK(follows_plan(grid, +1) == (grid.rows <= 2 && grid.cols <= 2));
  }
}

TEST_CASE("windows of the 2 x 3 grid") {
  const PanelPlan plan = PanelPlan::make(2, 3, 0, 0);
  CHECK(plan.panels == 6);
  CHECK(plan.x_window == 2);
  CHECK(plan.y_window == 3);
  const std::vector<int> starts{plan.start(0, 0), plan.start(0, 1), plan.start(0, 2),
                                plan.start(1, 0), plan.start(1, 1), plan.start(1, 2)};
  CHECK(starts == std::vector<int>{0, 2, 4, 3, 5, 1});
}

TEST_CASE("on a square grid each operand goes to one rank and moves P-1 times") {
  for (const int p : {1, 2, 3, 4})
    for (const Contracted contracted : {Contracted::rows, Contracted::cols}) {
      const std::int64_t n = 12 * p;
      const Ownership rest = tiles_at_rest(p, p, n, n);
      std::int64_t messages = 0;
      for (int rank = 0; rank < p * p; ++rank) {
        for (const Ownership& target :
             {x_panels(p, p, n, n, contracted), y_panels(p, p, n, n, contracted)}) {
          const RelayoutPlan plan = plan_relayout(rest, target, rank);
          CHECK(plan.target.size() == 1);
          CHECK(plan.sends.size() == 1);
          messages += sent_messages(plan);
        }
        const PanelPlan plan = PanelPlan::make(p, p, rank / p, rank % p);
        int moves = 0;
        for (int t = 0; t < plan.panels; ++t) moves += plan.x_moves(t);
        CHECK(moves == p - 1);
      }
      if (p > 1) CHECK(messages > 0);
    }
}

TEST_CASE("the panels of an operand tile its matrix once for every block of the other index") {
  for (const Grid grid : kGrids)
    for (const bool is_x : {true, false})
      for (const Contracted contracted : {Contracted::rows, Contracted::cols}) {
        CAPTURE(grid.rows, grid.cols, is_x);
        const PanelPlan plan = PanelPlan::make(grid.rows, grid.cols, 0, 0);
        const std::int64_t n = 2 * plan.panels;
        const Ownership panels = is_x ? x_panels(grid.rows, grid.cols, n, n, contracted)
                                      : y_panels(grid.rows, grid.cols, n, n, contracted);
        std::int64_t area = 0;
        for (const std::vector<Box>& boxes : panels.pieces)
          for (const Box& box : boxes) area += box.area();
        CHECK(area == n * n);
      }
}

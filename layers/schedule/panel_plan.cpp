// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/panel_plan.hpp"

#include <numeric>

#include "tessera/mesh/testing.hpp"

namespace tessera {
namespace {

// First panel of a window. The skew is what makes it depend on both coordinates.
int window_start(const PanelPlan& plan, int i, int j, bool is_x) {
  if (mutation() == Mutation::drop_skew) return is_x ? j * plan.x_window : i * plan.y_window;
  return plan.start(i, j);
}

Ownership panels_of(int grid_rows, int grid_cols, std::int64_t rows, std::int64_t cols,
                    Contracted contracted, bool is_x) {
  Ownership owners;
  for (int i = 0; i < grid_rows; ++i)
    for (int j = 0; j < grid_cols; ++j) {
      const PanelPlan plan = PanelPlan::make(grid_rows, grid_cols, i, j);
      std::vector<Box>& boxes = owners.pieces.emplace_back();
      const int window = is_x ? plan.x_window : plan.y_window;
      for (int k = 0; k < window; ++k) {
        const int panel = (window_start(plan, i, j, is_x) + k) % plan.panels;
        const bool by_rows = contracted == Contracted::rows;
        const Interval inner = shard_of(by_rows ? rows : cols, plan.panels, panel);
        const std::int64_t shared = by_rows ? cols : rows;
        const Interval outer =
            is_x ? shard_of(shared, grid_rows, i) : shard_of(shared, grid_cols, j);
        boxes.push_back(by_rows ? Box{inner, outer} : Box{outer, inner});
      }
    }
  return owners;
}

}  // namespace

PanelPlan PanelPlan::make(int rows, int cols, int i, int j) {
  PanelPlan plan;
  plan.rows = rows;
  plan.cols = cols;
  plan.i = i;
  plan.j = j;
  plan.panels = std::lcm(rows, cols);
  plan.x_window = plan.panels / cols;
  plan.y_window = plan.panels / rows;
  return plan;
}

Ownership tiles_at_rest(int grid_rows, int grid_cols, std::int64_t rows, std::int64_t cols) {
  Ownership owners;
  for (int i = 0; i < grid_rows; ++i)
    for (int j = 0; j < grid_cols; ++j)
      owners.pieces.push_back({Box{shard_of(rows, grid_rows, i), shard_of(cols, grid_cols, j)}});
  return owners;
}

Ownership x_panels(int grid_rows, int grid_cols, std::int64_t rows, std::int64_t cols,
                   Contracted contracted) {
  return panels_of(grid_rows, grid_cols, rows, cols, contracted, true);
}

Ownership y_panels(int grid_rows, int grid_cols, std::int64_t rows, std::int64_t cols,
                   Contracted contracted) {
  return panels_of(grid_rows, grid_cols, rows, cols, contracted, false);
}

}  // namespace tessera

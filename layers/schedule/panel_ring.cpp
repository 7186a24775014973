// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/panel_ring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera {
namespace {

// The plan of a CP grid, whose ranks begin at `first` on the mesh.
RelayoutPlan on_mesh(RelayoutPlan plan, int first) {
  plan.rank += first;
  for (RelayoutPlan::Part& part : plan.sends) part.peer += first;
  for (RelayoutPlan::Part& part : plan.receives) part.peer += first;
  return plan;
}

// The window of one operand. The front is used, then handed on; its buffer becomes the spare that
// the next panel is received into, unless it is the caller's tile.
class Window {
 public:
  Window(const DeviceMesh& mesh, const Operand& operand, bool is_x)
      : mesh_(mesh), operand_(operand), axis_(is_x ? kCp1 : kCp0) {
    const PurposeScope purpose(Purpose::communication);
    const int rows = mesh.size(kCp0);
    const int cols = mesh.size(kCp1);
    const std::int64_t global_rows = operand.tile.size(1) * rows;
    const std::int64_t global_cols = operand.tile.size(2) * cols;
    const int first = mesh.coordinate(kDp) * rows * cols;  // the CP grid is a contiguous block
    const Ownership at_rest = tiles_at_rest(rows, cols, global_rows, global_cols);
    const Ownership skewed =
        is_x ? x_panels(rows, cols, global_rows, global_cols, operand.contracted)
             : y_panels(rows, cols, global_rows, global_cols, operand.contracted);
    const RelayoutPlan plan = on_mesh(plan_relayout(at_rest, skewed, mesh.rank() - first), first);
    for (Tensor& panel :
         relayout(mesh, plan, {operand.tile}, "cp0+cp1", fmt::format("skew {}", operand.name)))
      panels_.push_back(std::move(panel));
  }

  const Tensor& front() const { return panels_.front(); }

  // Starts to pass the front on and to receive the panel that will join the back.
  Pending start() {
    const PurposeScope purpose(Purpose::communication);
    if (!spare_.defined())
      spare_ = Tensor::empty(front().shape(), front().dtype(), front().device());
    return shift(mesh_, axis_, -1, front(), spare_, fmt::format("ring {}", operand_.name));
  }

  void advance(bool received) {
    const Tensor used = panels_.front();
    panels_.pop_front();
    if (!received) return;
    panels_.push_back(spare_);
    spare_ = used.shares_storage(operand_.tile) ? Tensor() : used;
  }

 private:
  const DeviceMesh& mesh_;
  const Operand& operand_;
  int axis_;
  std::deque<Tensor> panels_;
  Tensor spare_;
};

// One group of matrices.
void contract_group(const DeviceMesh& mesh, const Operand& x, const Operand& y,
                    std::int64_t batch_begin, const std::function<void(const PanelStep&)>& block) {
  const PanelPlan plan = PanelPlan::make(mesh.size(kCp0), mesh.size(kCp1), mesh.coordinate(kCp0),
                                         mesh.coordinate(kCp1));
  Window x_window(mesh, x, true);
  Window y_window(mesh, y, false);
  for (int t = 0; t < plan.panels; ++t) {
    Pending x_moving, y_moving;
    if (plan.x_moves(t)) x_moving = x_window.start();
    if (plan.y_moves(t)) y_moving = y_window.start();
    block({x_window.front(), y_window.front(), t, batch_begin});
    if (plan.x_moves(t)) x_moving.wait();
    if (plan.y_moves(t)) y_moving.wait();
    x_window.advance(plan.x_moves(t));
    y_window.advance(plan.y_moves(t));
  }
}

}  // namespace

std::int64_t ring_groups(const DeviceMesh& mesh, const Tensor& tile) {
  constexpr std::int64_t group_bytes = 1 << 20;  // large enough for the bandwidth of any network
  constexpr std::int64_t most_groups = 8;
  if (mesh.size(kCp0) * mesh.size(kCp1) == 1) return 1;
  return std::clamp<std::int64_t>(tile.bytes() / group_bytes, 1,
                                  std::min(most_groups, tile.size(0)));
}

void contract_panels(const DeviceMesh& mesh, const Operand& x, const Operand& y,
                     const std::function<void(const PanelStep&)>& block) {
  const auto groups = static_cast<int>(ring_groups(mesh, x.tile));
  for (int k = 0; k < groups; ++k) {
    const Interval part = shard_of(x.tile.size(0), groups, k);
    const auto group_of = [&](const Operand& operand) {
      return Operand{operand.tile.narrow(0, part.begin, part.size()), operand.contracted,
                     operand.name};
    };
    contract_group(mesh, group_of(x), group_of(y), part.begin, block);
  }
}

}  // namespace tessera

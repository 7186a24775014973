// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/panel_ring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <optional>

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
    skew_.emplace(start_relayout(mesh, plan, {operand.tile}, "cp0+cp1",
                                 fmt::format("skew {}", operand.name)));
  }

  // Ends the skew, which began with the window.
  void arrive() {
    const PurposeScope purpose(Purpose::communication);
    for (Tensor& panel : skew_->wait()) panels_.push_back(std::move(panel));
    skew_.reset();
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
  std::optional<PendingRelayout> skew_;
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
  x_window.arrive();
  y_window.arrive();
  for (int t = 0; t < plan.panels; ++t) {
    Pending x_moving, y_moving;
    if (plan.x_moves(t)) x_moving = x_window.start();
    if (plan.y_moves(t)) y_moving = y_window.start();
    {
      const trace::Span span(trace::Kind::block, "panel product");
      block({x_window.front(), y_window.front(), t, batch_begin});
    }
    if (plan.x_moves(t)) x_moving.wait();
    if (plan.y_moves(t)) y_moving.wait();
    x_window.advance(plan.x_moves(t));
    y_window.advance(plan.y_moves(t));
  }
}

}  // namespace

std::int64_t ring_groups(std::int64_t ranks, std::int64_t tile_bytes, std::int64_t matrices) {
  constexpr std::int64_t group_bytes = 1 << 20;  // large enough for the bandwidth of any network
  constexpr std::int64_t most_groups = 8;
  if (ranks == 1) return 1;
  return std::clamp<std::int64_t>(tile_bytes / group_bytes, 1, std::min(most_groups, matrices));
}

void contract_panels(const DeviceMesh& mesh, const Operand& x, const Operand& y,
                     const std::function<void(const PanelStep&)>& block) {
  const auto groups = static_cast<int>(
      ring_groups(mesh.size(kCp0) * mesh.size(kCp1), x.tile.bytes(), x.tile.size(0)));
  for (int k = 0; k < groups; ++k) {
    const Interval part = shard_of(x.tile.size(0), groups, k);
    const auto group_of = [&](const Operand& operand) {
      return Operand{operand.tile.narrow(0, part.begin, part.size()), operand.contracted,
                     operand.name};
    };
    contract_group(mesh, group_of(x), group_of(y), part.begin, block);
  }
}

std::vector<ContractMessage> panel_messages(Pass pass, const PanelSizes& sizes,
                                            const PanelOperand& x, const PanelOperand& y) {
  const Formula R0 = Formula::symbol("R0"), R1 = Formula::symbol("R1");
  const Formula steps = Formula::lcm(R0, R1);
  const Formula tile = sizes.batch * sizes.rows * sizes.cols / (R0 * R1) * sizes.element_bytes;
  const Formula groups = Formula::function("K", [R0, R1, tile, sizes](const Symbols& s) {
    return ring_groups((R0 * R1).evaluate(s), tile.evaluate(s), sizes.batch.evaluate(s));
  });
  std::vector<ContractMessage> all;
  for (const bool is_x : {true, false}) {
    const PanelOperand& operand = is_x ? x : y;
    // Elements and messages of the skew of one matrix, by the plan that the move follows.
    const auto skew = [=](std::int64_t (*count)(const RelayoutPlan&), const char* what) {
      return Formula::function(
          fmt::format("{}(skew {})", what, operand.name), [=](const Symbols& s) {
            const auto rows = static_cast<int>(R0.evaluate(s));
            const auto cols = static_cast<int>(R1.evaluate(s));
            const std::int64_t n = sizes.rows.evaluate(s), m = sizes.cols.evaluate(s);
            const Ownership target = is_x ? x_panels(rows, cols, n, m, operand.contracted)
                                          : y_panels(rows, cols, n, m, operand.contracted);
            const auto rank = static_cast<int>(s.at("i") * cols + s.at("j"));
            return count(plan_relayout(tiles_at_rest(rows, cols, n, m), target, rank));
          });
    };
    all.push_back({pass, "relayout", "cp0+cp1", fmt::format("skew {}", operand.name), groups,
                   groups * skew(sent_messages, "messages"),
                   sizes.batch * skew(sent_elements, "elements") * sizes.element_bytes});
    // A window of lcm/R1 (lcm/R0) panels stays; the others come by, one at a time.
    const Formula ring = is_x ? R1 : R0;
    const Formula moves = groups * (steps - steps / ring);
    all.push_back({pass, "shift", is_x ? "cp1" : "cp0", fmt::format("ring {}", operand.name), moves,
                   moves, (ring - 1) * tile});
  }
  return all;
}

}  // namespace tessera

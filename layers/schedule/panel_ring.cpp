// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/panel_ring.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

constexpr const char* kWholeGrid = "cp0+cp1";

GroupLimits& group_limits() {
  static GroupLimits limits;
  return limits;
}

int axis_of(Side side) {
  return side == Side::x ? kCp1 : kCp0;
}
const char* axis_name(Side side) {
  return side == Side::x ? "cp1" : "cp0";
}

struct Grid {
  int rows, cols;
};

// Of a rows x cols matrix at rest, from tiles to windows.
RelayoutPlan skew_plan(Grid grid, int rank, Side side, const PanelOperand& operand,
                       std::int64_t rows, std::int64_t cols) {
  Ownership rest = tiles_at_rest(grid.rows, grid.cols, rows, cols);
  Ownership skewed = side == Side::x
                         ? x_panels(grid.rows, grid.cols, rows, cols, operand.contracted)
                         : y_panels(grid.rows, grid.cols, rows, cols, operand.contracted);
  if (operand.transposed)
    for (Ownership* owners : {&rest, &skewed})
      for (std::vector<Box>& boxes : owners->pieces)
        for (Box& box : boxes) std::swap(box.rows, box.cols);
  return plan_relayout(rest, skewed, rank);
}

// The plan of a CP grid, whose ranks begin at `first` on the mesh.
RelayoutPlan on_mesh(RelayoutPlan plan, int first) {
  plan.rank += first;
  for (RelayoutPlan::Part& part : plan.sends) part.peer += first;
  for (RelayoutPlan::Part& part : plan.receives) part.peer += first;
  return plan;
}

RelayoutPlan skew_plan(const DeviceMesh& mesh, Side side, const PanelOperand& operand,
                       std::int64_t rows, std::int64_t cols) {
  const Grid grid{mesh.size(kCp0), mesh.size(kCp1)};
  const int first = mesh.coordinate(kDp) * grid.rows * grid.cols;  // the grid is contiguous
  return on_mesh(skew_plan(grid, mesh.rank() - first, side, operand, rows, cols), first);
}

// One side while it rotates. The front is used, then handed on; its buffer becomes the spare that
// the next panel is received into, unless somebody else reads it too.
class Panels {
 public:
  Panels(const DeviceMesh& mesh, Side side, const Travelling& travelling, int steps)
      : mesh_(mesh),
        axis_(axis_of(side)),
        name_(travelling.name),
        panels_(travelling.panels.begin(), travelling.panels.end()),
        last_move_(steps - static_cast<int>(travelling.panels.size())),
        shared_(panels_.size()) {}

  const Tensor& front() const { return panels_.front(); }

  // Starts to pass the front on and to receive the panel that will join the back, if it will be
  // used there.
  void start(int step) {
    moves_ = step < last_move_;
    if (!moves_) return;
    const PurposeScope purpose(Purpose::communication);
    if (!spare_.defined())
      spare_ = Tensor::empty(front().shape(), front().dtype(), front().device());
    moving_ = shift(mesh_, axis_, -1, front(), spare_, fmt::format("ring {}", name_));
  }
  void progress() { moving_.progress(); }

  void advance() {
    moving_.wait();
    moving_ = Pending();
    Tensor used = std::move(panels_.front());
    panels_.pop_front();
    const bool ours = shared_ == 0;
    if (!ours) --shared_;
    if (!moves_) return;
    panels_.push_back(std::move(spare_));
    spare_ = ours ? std::move(used) : Tensor();
  }

 private:
  const DeviceMesh& mesh_;
  int axis_;
  const char* name_;
  std::deque<Tensor> panels_;
  int last_move_;
  std::size_t shared_;  // panels at the front that the caller may hold too
  Tensor spare_;
  Pending moving_;
  bool moves_ = false;
};

// The sums of one side. In every step the front's are added to and handed on, also in the last:
// then they are back in the start position.
class Sums {
 public:
  Sums(const DeviceMesh& mesh, Side side, const Travelling& travelling)
      : mesh_(mesh), axis_(axis_of(side)), label_(fmt::format("ring d{}", travelling.name)) {
    for (const Tensor& sum : travelling.sums) slots_.push_back({sum, {}, {}});
  }

  // What the block adds to: the front's sum, or zeros if that is still on its way.
  Tensor front() {
    if (slots_.empty()) return {};
    Slot& slot = slots_.front();
    if (slots_.size() > 1) settle(slot);  // it has had a whole step
    if (!slot.received_for.defined()) return slot.sum;
    const PurposeScope purpose(Purpose::communication);
    if (!fresh_.defined())
      fresh_ = Tensor::empty(slot.sum.shape(), slot.sum.dtype(), slot.sum.device());
    fill(fresh_, 0);
    return fresh_;
  }
  void progress() {
    for (Slot& slot : slots_) slot.arriving.progress();
  }

  void hand_on(bool last) {
    if (slots_.empty()) return;
    Slot slot = std::move(slots_.front());
    slots_.pop_front();
    if (slot.received_for.defined()) {
      settle(slot);
      add(1, slot.sum, 1, fresh_, slot.sum);
    }
    if (mesh_.size(axis_) == 1 || (last && mutation() == Mutation::drop_last_rotation)) {
      slots_.push_back(std::move(slot));
      return;
    }
    const PurposeScope purpose(Purpose::communication);
    if (!spare_.defined())
      spare_ = Tensor::empty(slot.sum.shape(), slot.sum.dtype(), slot.sum.device());
    Pending arriving = shift(mesh_, axis_, -1, slot.sum, spare_, label_);
    slots_.push_back({std::exchange(spare_, Tensor()), std::move(arriving), slot.sum});
  }

  Window take() {
    Window window;
    for (Slot& slot : slots_) {
      settle(slot);
      window.push_back(std::move(slot.sum));
    }
    return window;
  }

 private:
  struct Slot {
    Tensor sum;
    Pending arriving;
    Tensor received_for;  // the own sum that left as this one came; undefined: nothing arrives
  };
  void settle(Slot& slot) {
    if (!slot.received_for.defined()) return;
    slot.arriving.wait();
    slot.arriving = Pending();
    spare_ = std::exchange(slot.received_for, Tensor());
  }

  const DeviceMesh& mesh_;
  int axis_;
  std::string label_;
  std::deque<Slot> slots_;
  Tensor spare_, fresh_;
};

// A line of a relayout whose elements and messages are those of one matrix by its plan.
template <class Plan>
ContractMessage move_message(Pass pass, const char* what, const PanelSizes& sizes,
                             const PanelOperand& operand, const Plan& plan) {
  const std::string label = fmt::format("{} {}", what, operand.name);
  const auto counted = [&](std::int64_t (*count)(const RelayoutPlan&), const char* unit) {
    return Formula::function(fmt::format("{}({})", unit, label), [=](const Symbols& s) {
      const Grid grid{static_cast<int>(s.at("R0")), static_cast<int>(s.at("R1"))};
      const auto rank = static_cast<int>(s.at("i") * grid.cols + s.at("j"));
      return count(plan(grid, rank, sizes.rows.evaluate(s), sizes.cols.evaluate(s)));
    });
  };
  return {pass,
          "relayout",
          kWholeGrid,
          label,
          1,
          counted(sent_messages, "messages"),
          sizes.batch * counted(sent_elements, "elements") * sizes.element_bytes};
}

Formula ring_of(Side side) {
  return Formula::symbol(side == Side::x ? "R1" : "R0");
}
Formula steps_of_ring() {
  return Formula::lcm(Formula::symbol("R0"), Formula::symbol("R1"));
}

}  // namespace

PendingRelayout start_skew(const DeviceMesh& mesh, Side side, const PanelOperand& operand,
                           const Tensor& tile) {
  const PurposeScope purpose(Purpose::communication);
  const std::int64_t across = operand.transposed ? mesh.size(kCp1) : mesh.size(kCp0);
  const std::int64_t along = operand.transposed ? mesh.size(kCp0) : mesh.size(kCp1);
  std::int64_t rows = tile.size(1) * across, cols = tile.size(2) * along;
  if (operand.transposed) std::swap(rows, cols);
  // Panels that never leave need not be contiguous.
  const Sharing sharing = mesh.size(axis_of(side)) == 1 ? Sharing::parts : Sharing::wholes;
  return start_relayout(mesh, skew_plan(mesh, side, operand, rows, cols), {tile}, kWholeGrid,
                        fmt::format("skew {}", operand.name), sharing);
}

Tensor unskew(const DeviceMesh& mesh, Side side, const PanelOperand& operand,
              const Window& window) {
  const PurposeScope purpose(Purpose::communication);
  const PanelPlan plan = PanelPlan::make(mesh.size(kCp0), mesh.size(kCp1), mesh.coordinate(kCp0),
                                         mesh.coordinate(kCp1));
  const Tensor& panel = window.front();
  std::int64_t rows = panel.size(operand.transposed ? 2 : 1);
  std::int64_t cols = panel.size(operand.transposed ? 1 : 2);
  const bool by_rows = operand.contracted == Contracted::rows;
  (by_rows ? rows : cols) *= plan.panels;
  (by_rows ? cols : rows) *= side == Side::x ? plan.rows : plan.cols;
  const RelayoutPlan home = reversed(skew_plan(mesh, side, operand, rows, cols));
  return relayout(mesh, home, window, kWholeGrid, fmt::format("home {}", operand.name)).front();
}

void rotate_panels(const DeviceMesh& mesh, Travelling& x, Travelling& y, const PanelBlock& block) {
  const PanelPlan plan = PanelPlan::make(mesh.size(kCp0), mesh.size(kCp1), mesh.coordinate(kCp0),
                                         mesh.coordinate(kCp1));
  Panels x_panels(mesh, Side::x, x, plan.panels), y_panels(mesh, Side::y, y, plan.panels);
  Sums x_sums(mesh, Side::x, x), y_sums(mesh, Side::y, y);
  for (Travelling* side : {&x, &y}) side->panels.clear();
  const auto progress = [&] {
    x_panels.progress();
    y_panels.progress();
    x_sums.progress();
    y_sums.progress();
  };
  for (int t = 0; t < plan.panels; ++t) {
    x_panels.start(t);
    y_panels.start(t);
    {
      const trace::Span span(trace::Kind::block, "panel product");
      block({x_panels.front(), y_panels.front(), x_sums.front(), y_sums.front(), t, progress});
    }
    const bool last = t + 1 == plan.panels;
    x_sums.hand_on(last);
    y_sums.hand_on(last);
    x_panels.advance();
    y_panels.advance();
  }
  x.sums = x_sums.take();
  y.sums = y_sums.take();
}

void set_group_limits(const GroupLimits& limits) {
  if (limits.bytes < 1 || limits.most < 1)
    throw RangeError({.problem = "groups have at least one byte, and there is at least one",
                      .operation = "set_group_limits",
                      .found = fmt::format("{} bytes, {} groups", limits.bytes, limits.most)});
  group_limits() = limits;
}

std::int64_t ring_groups(std::int64_t ranks, std::int64_t tile_bytes, std::int64_t units) {
  if (ranks == 1) return 1;
  const GroupLimits& limits = group_limits();
  return std::clamp<std::int64_t>(tile_bytes / limits.bytes, 1, std::min(limits.most, units));
}

void contract_panels(const DeviceMesh& mesh, const Operand& x, const Operand& y, std::int64_t units,
                     const PanelBlock& block) {
  const auto groups =
      static_cast<int>(ring_groups(mesh.size(kCp0) * mesh.size(kCp1), x.tile.bytes(), units));
  for (int k = 0; k < groups; ++k) {
    const Interval part = shard_of(units, groups, k);
    const auto start = [&](Side side, const Operand& operand) {
      const std::int64_t each = operand.tile.size(0) / units;
      return start_skew(mesh, side, {operand.name, operand.contracted},
                        operand.tile.narrow(0, part.begin * each, part.size() * each));
    };
    PendingRelayout x_skew = start(Side::x, x), y_skew = start(Side::y, y);
    Travelling x_side{x.name, x_skew.wait()}, y_side{y.name, y_skew.wait()};
    rotate_panels(mesh, x_side, y_side, [&](const PanelStep& step) {
      PanelStep whole = step;
      whole.unit_begin = part.begin;
      block(whole);
    });
  }
}

ContractMessage skew_message(Pass pass, Side side, const PanelSizes& sizes,
                             const PanelOperand& operand) {
  return move_message(pass, "skew", sizes, operand,
                      [=](Grid grid, int rank, std::int64_t rows, std::int64_t cols) {
                        return skew_plan(grid, rank, side, operand, rows, cols);
                      });
}

ContractMessage unskew_message(Pass pass, Side side, const PanelSizes& sizes,
                               const PanelOperand& operand) {
  return move_message(pass, "home", sizes, operand,
                      [=](Grid grid, int rank, std::int64_t rows, std::int64_t cols) {
                        return reversed(skew_plan(grid, rank, side, operand, rows, cols));
                      });
}

ContractMessage ring_message(Pass pass, Side side, const char* name, const Formula& window_bytes) {
  // A window of L/R panels stays; the others come by, one at a time.
  const Formula moves = steps_of_ring() - steps_of_ring() / ring_of(side);
  return {pass,
          "shift",
          axis_name(side),
          fmt::format("ring {}", name),
          moves,
          moves,
          (ring_of(side) - 1) * window_bytes};
}

ContractMessage sums_message(Pass pass, Side side, const char* name, const Formula& window_bytes) {
  const Formula ring = ring_of(side), steps = steps_of_ring();
  const Formula moves = Formula::function(
      fmt::format("[{} > 1] {}", ring.text(), steps.text()),
      [=](const Symbols& s) { return ring.evaluate(s) > 1 ? steps.evaluate(s) : 0; });
  return {pass,
          "shift",
          axis_name(side),
          fmt::format("ring d{}", name),
          moves,
          moves,
          moves * window_bytes * ring / steps};
}

std::vector<ContractMessage> in_groups(std::vector<ContractMessage> lines, const Formula& groups) {
  for (ContractMessage& line : lines) {
    line.count = groups * line.count;
    line.messages = groups * line.messages;
  }
  return lines;
}

Formula ring_groups(const Formula& tile_bytes, const Formula& units) {
  const Formula ranks = Formula::symbol("R0") * Formula::symbol("R1");
  return Formula::function("K", [=](const Symbols& s) {
    return ring_groups(ranks.evaluate(s), tile_bytes.evaluate(s), units.evaluate(s));
  });
}

std::vector<ContractMessage> panel_messages(Pass pass, const PanelSizes& x_sizes,
                                            const PanelOperand& x, const PanelSizes& y_sizes,
                                            const PanelOperand& y, const Formula& units) {
  const auto tile_bytes = [](const PanelSizes& sizes) {
    return sizes.batch * sizes.rows * sizes.cols / (Formula::symbol("R0") * Formula::symbol("R1")) *
           sizes.element_bytes;
  };
  return in_groups({skew_message(pass, Side::x, x_sizes, x),
                    ring_message(pass, Side::x, x.name, tile_bytes(x_sizes)),
                    skew_message(pass, Side::y, y_sizes, y),
                    ring_message(pass, Side::y, y.name, tile_bytes(y_sizes))},
                   ring_groups(tile_bytes(x_sizes), units));
}

}  // namespace tessera

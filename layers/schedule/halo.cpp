// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/halo.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

std::int64_t rows_of(const std::vector<HaloPlan::Part>& parts) {
  std::int64_t rows = 0;
  for (const HaloPlan::Part& part : parts) rows += part.rows.size();
  return rows;
}

// Rows of a block [batch, held, n].
Tensor rows_in(const Tensor& block, Interval held, Interval rows) {
  return block.narrow(1, rows.begin - held.begin, rows.size());
}

// Sends `leaving` of a block that holds `held`; the buffers of `coming` in its order.
std::vector<Tensor> swap_parts(const DeviceMesh& mesh, int axis, const Tensor& block, Interval held,
                               const std::vector<HaloPlan::Part>& leaving,
                               const std::vector<HaloPlan::Part>& coming,
                               const std::string& label) {
  const PurposeScope purpose(Purpose::communication);
  const std::vector<int> ranks = mesh.group(std::span<const int>(&axis, 1));
  const auto rank = [&](const HaloPlan::Part& part) {
    return ranks[static_cast<std::size_t>(part.coordinate)];
  };
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  std::vector<Tensor> buffers;
  for (const HaloPlan::Part& part : leaving)
    sends.push_back({rank(part), rows_in(block, held, part.rows).contiguous()});
  for (const HaloPlan::Part& part : coming) {
    buffers.push_back(Tensor::empty({block.size(0), part.rows.size(), block.size(2)}, block.dtype(),
                                    block.device()));
    receives.push_back({rank(part), buffers.back()});
  }
  if (mesh.size(axis) > 1)
    exchange(mesh, {"halo", mesh.axis_name(axis), label}, sends, receives).wait();
  return buffers;
}

}  // namespace

std::int64_t HaloPlan::sent_rows() const {
  return rows_of(sends);
}
std::int64_t HaloPlan::received_rows() const {
  return rows_of(receives);
}

HaloPlan plan_halo(std::int64_t rows, const std::vector<Interval>& needed, int me) {
  const int parts = static_cast<int>(needed.size());
  HaloPlan plan{shard_of(rows, parts, me), needed[static_cast<std::size_t>(me)], {}, {}};
  for (int c = 0; c < parts; ++c) {
    if (c == me) continue;
    const Interval leaving = intersect(plan.owned, needed[static_cast<std::size_t>(c)]);
    const Interval coming = intersect(shard_of(rows, parts, c), plan.needed);
    if (!leaving.empty()) plan.sends.push_back({c, leaving});
    if (!coming.empty()) plan.receives.push_back({c, coming});
  }
  return plan;
}

std::int64_t window_start(std::int64_t window, std::int64_t h) {
  return 1 - h / 2 + 2 * window;
}

HaloPlan plan_window_halo(std::int64_t windows, std::int64_t h, int parts, int me,
                          const char* operation) {
  if (windows % parts != 0)
    throw UnevenError({.problem = "every rank has equally many windows",
                       .operation = operation,
                       .found = fmt::format("{} windows on {} ranks", windows, parts),
                       .expected = fmt::format("a multiple of {}", parts),
                       .hint = "pack() makes the length a multiple of window and ranks"});
  const std::int64_t own = windows / parts;
  std::vector<Interval> needed;
  for (int c = 0; c < parts; ++c)
    needed.push_back({std::max<std::int64_t>(0, window_start(c * own, h)),
                      std::min(2 * windows, window_start((c + 1) * own - 1, h) + h)});
  return plan_halo(2 * windows, needed, me);
}

Tensor gather_halo(const DeviceMesh& mesh, int axis, const HaloPlan& plan, const Tensor& own,
                   const std::string& label) {
  const std::vector<Tensor> arrived =
      swap_parts(mesh, axis, own, plan.owned, plan.sends, plan.receives, label);
  const Tensor all =
      Tensor::empty({own.size(0), plan.needed.size(), own.size(2)}, own.dtype(), own.device());
  copy(own, rows_in(all, plan.needed, plan.owned));
  for (std::size_t k = 0; k < arrived.size(); ++k)
    copy(arrived[k], rows_in(all, plan.needed, plan.receives[k].rows));
  return all;
}

Tensor scatter_halo(const DeviceMesh& mesh, int axis, const HaloPlan& plan, const Tensor& terms,
                    const std::string& label) {
  const std::vector<Tensor> arrived =
      swap_parts(mesh, axis, terms, plan.needed, plan.receives, plan.sends, label);
  const Tensor sum = rows_in(terms, plan.needed, plan.owned).clone();
  for (std::size_t k = 0; k < arrived.size(); ++k) {
    const Tensor rows = rows_in(sum, plan.owned, plan.sends[k].rows);
    add(1, rows, 1, arrived[k], rows);
  }
  return sum;
}

}  // namespace tessera

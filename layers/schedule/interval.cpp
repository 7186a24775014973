// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/interval.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {
namespace {

using Parts = std::vector<IntervalPlan::Part>;
constexpr const char* kOperation = "interval";

void check_needs(const DeviceMesh& mesh, int axis, std::int64_t size,
                 const std::vector<Interval>& needs) {
  const int ranks = mesh.size(axis);
  if (size % ranks != 0)
    throw UnevenError({.problem = "the dim does not divide by the axis",
                       .operation = "plan_intervals",
                       .found = fmt::format("{} elements on {} ranks", size, ranks)});
  if (static_cast<int>(needs.size()) != ranks)
    throw ShapeError({.problem = "one need for each rank of the axis",
                      .operation = "plan_intervals",
                      .found = fmt::format("{} needs", needs.size()),
                      .expected = fmt::format("{}", ranks)});
  for (const Interval& need : needs)
    if (!need.empty() && (need.begin < 0 || need.end > size))
      throw RangeError({.problem = "a need outside the dim",
                        .operation = "plan_intervals",
                        .found = fmt::format("[{}, {})", need.begin, need.end),
                        .expected = fmt::format("part of [0, {})", size)});
}

// The rows [begin, end) of a tensor whose dim 1 begins at `origin`.
Tensor rows_of_region(const Tensor& x, Interval origin, Interval region) {
  return x.narrow(1, region.begin - origin.begin, region.size());
}

std::vector<Outgoing> outgoing(const Parts& parts, const Tensor& x, Interval origin) {
  std::vector<Outgoing> sends;
  for (const IntervalPlan::Part& part : parts)
    sends.push_back({part.peer, rows_of_region(x, origin, part.region).contiguous()});
  return sends;
}

std::vector<Incoming> incoming(const Parts& parts, const Tensor& like) {
  std::vector<Incoming> receives;
  for (const IntervalPlan::Part& part : parts)
    receives.push_back({part.peer, Tensor::empty({like.size(0), part.region.size(), like.size(2)},
                                                 like.dtype(), like.device())});
  return receives;
}

// Sends and receives parts; the received tensors in the order of the plan.
std::vector<Incoming> swap_parts(const DeviceMesh& mesh, const IntervalPlan& plan,
                                 const Parts& leaving, const Parts& coming, const Tensor& x,
                                 Interval origin, const std::string& label, CallSite where) {
  const PurposeScope purpose(Purpose::communication);
  std::vector<Incoming> received = incoming(coming, x);
  if (!plan.local)
    exchange(mesh, {kOperation, mesh.axis_name(plan.axis), label, where},
             outgoing(leaving, x, origin), received)
        .wait();
  return received;
}

void check_rows(const char* operation, const std::string& label, const Tensor& x,
                Interval interval) {
  if (x.ndim() == 3 && x.size(1) == interval.size()) return;
  throw ShapeError({.problem = "the tensor is not what the plan is for",
                    .operation = operation,
                    .tensor = label,
                    .found = format_shape(x.shape()),
                    .expected = fmt::format("[batch, {}, features]", interval.size())});
}

ContractMessage message_of(Pass pass, const DeviceMesh& mesh, int axis, const Parts& leaving,
                           const char* rows, const Formula& row_bytes, std::string label) {
  return {pass,
          kOperation,
          mesh.axis_name(axis),
          std::move(label),
          1,
          number("peers with an overlap", static_cast<std::int64_t>(leaving.size())),
          number(rows, rows_in(leaving)) * row_bytes};
}

}  // namespace

IntervalPlan plan_intervals(const DeviceMesh& mesh, int axis, std::int64_t size,
                            const std::vector<Interval>& needs) {
  check_needs(mesh, axis, size, needs);
  const std::vector<int> group = mesh.group({&axis, 1});
  const auto owned = [&](std::size_t c) {
    return shard_of(size, mesh.size(axis), static_cast<int>(c));
  };
  const auto me = static_cast<std::size_t>(mesh.coordinate(axis));
  IntervalPlan plan{.axis = axis, .own = owned(me), .need = intersect(needs[me], {0, size})};
  plan.local = group.size() == 1;
  for (std::size_t c = 0; c < group.size(); ++c) {
    if (c == me) continue;
    if (const Interval region = intersect(plan.own, needs[c]); !region.empty())
      plan.sends.push_back({group[c], region});
    if (const Interval region = intersect(plan.need, owned(c)); !region.empty())
      plan.receives.push_back({group[c], region});
  }
  return plan;
}

std::int64_t rows_in(const Parts& parts) {
  std::int64_t rows = 0;
  for (const IntervalPlan::Part& part : parts) rows += part.region.size();
  return rows;
}

std::vector<std::vector<std::int64_t>> gather_integers(const DeviceMesh& mesh, int axis,
                                                       const std::vector<std::int64_t>& own,
                                                       const std::string& label, CallSite where) {
  const PurposeScope purpose(Purpose::communication);
  const Tensor mine = staging({static_cast<std::int64_t>(own.size())}, DType::i64, mesh.device());
  std::copy(own.begin(), own.end(), mine.host_data<std::int64_t>());
  const Tensor all = all_gather(mesh, axis, mine.to(mesh.device()), 0, label, where);
  if (!has_values(all)) return {};
  const Tensor host = all.to(cpu_device);
  const auto* values = host.host_data<std::int64_t>();
  std::vector<std::vector<std::int64_t>> tables;
  for (int c = 0; c < mesh.size(axis); ++c, values += own.size())
    tables.emplace_back(values, values + own.size());
  return tables;
}

IntervalPlan agree_on_intervals(const DeviceMesh& mesh, int axis, std::int64_t size, Interval need,
                                const std::string& label, CallSite where) {
  const auto tables = gather_integers(mesh, axis, {need.begin, need.end}, label, where);
  std::vector<Interval> needs;
  for (const std::vector<std::int64_t>& table : tables) needs.push_back({table[0], table[1]});
  if (needs.empty()) needs.assign(static_cast<std::size_t>(mesh.size(axis)), Interval{0, size});
  return plan_intervals(mesh, axis, size, needs);
}

Tensor interval_gather(const DeviceMesh& mesh, const IntervalPlan& plan, const Tensor& x,
                       const std::string& label, CallSite where) {
  check_rows("interval_gather", label, x, plan.own);
  const auto received =
      swap_parts(mesh, plan, plan.sends, plan.receives, x, plan.own, label, where);
  const Tensor y = Tensor::empty({x.size(0), plan.need.size(), x.size(2)}, x.dtype(), x.device());
  const auto place = [&](const Tensor& rows, Interval region) {
    copy(rows, rows_of_region(y, plan.need, region));
  };
  for (std::size_t k = 0; k < received.size(); ++k)
    place(received[k].data, plan.receives[k].region);
  if (const Interval both = intersect(plan.own, plan.need); !both.empty())
    place(rows_of_region(x, plan.own, both), both);
  return y;
}

Tensor interval_scatter_add(const DeviceMesh& mesh, const IntervalPlan& plan, const Tensor& x,
                            const std::string& label, CallSite where) {
  check_rows("interval_scatter_add", label, x, plan.need);
  const auto received =
      swap_parts(mesh, plan, plan.receives, plan.sends, x, plan.need, label, where);
  const Tensor y = Tensor::zeros({x.size(0), plan.own.size(), x.size(2)}, x.dtype(), x.device());
  const auto add_rows = [&](const Tensor& rows, Interval region) {
    const Tensor sum = rows_of_region(y, plan.own, region);
    add(1, sum, 1, rows, sum);
  };
  std::size_t k = 0;
  for (; k < received.size() && received[k].peer < mesh.rank(); ++k)
    add_rows(received[k].data, plan.sends[k].region);
  if (const Interval both = intersect(plan.own, plan.need); !both.empty())
    add_rows(rows_of_region(x, plan.need, both), both);
  for (; k < received.size(); ++k) add_rows(received[k].data, plan.sends[k].region);
  return y;
}

ContractMessage interval_gather_message(Pass pass, const DeviceMesh& mesh, const IntervalPlan& plan,
                                        const Formula& row_bytes, std::string label) {
  return message_of(pass, mesh, plan.axis, plan.sends, "rows that others need", row_bytes,
                    std::move(label));
}

ContractMessage interval_scatter_add_message(Pass pass, const DeviceMesh& mesh,
                                             const IntervalPlan& plan, const Formula& row_bytes,
                                             std::string label) {
  return message_of(pass, mesh, plan.axis, plan.receives, "rows needed of others", row_bytes,
                    std::move(label));
}

}  // namespace tessera

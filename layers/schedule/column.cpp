// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/column.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

constexpr const char* kName = "exchange_column";
constexpr const char* kAdjoint = "add_columns";

// The dim that moves.
int column_dim(const DTensor& x, int from, int to) {
  const Placement& source = x.placements().at(static_cast<std::size_t>(from));
  if (!is_shard(source) || !is_replicate(x.placements().at(static_cast<std::size_t>(to))))
    throw PlacementError({.problem = fmt::format("needs a dim that is sharded by {} and not by {}",
                                                 x.mesh().axis_name(from), x.mesh().axis_name(to)),
                          .operation = kName,
                          .found = x.describe()});
  return std::get<Shard>(source).dim;
}

// The rank at the own coordinates but for those of the two axes.
int rank_at(const DeviceMesh& mesh, int from, int f, int to, int t) {
  std::vector<int> coordinate = mesh.coordinate();
  coordinate[static_cast<std::size_t>(from)] = f;
  coordinate[static_cast<std::size_t>(to)] = t;
  return mesh.rank_of(coordinate);
}

// The part of a block that lies in a region of the dim.
Tensor part_of(const Tensor& block, int dim, Interval own, Interval region) {
  return block.narrow(dim, region.begin - own.begin, region.size());
}

// What is sent if these parts of a tensor like x, in its number of bytes per element, are. On a
// square grid: one message of n(x) elements; on others the parts of a block that other ranks need.
ContractMessage message_of(Pass pass, const char* op, const std::vector<ColumnPlan::Part>& parts,
                           const DTensor& x, DType dtype, const std::string& name, int from, int to,
                           std::string label) {
  std::int64_t length = 0;
  for (const ColumnPlan::Part& part : parts) length += part.region.size();
  const std::int64_t row = x.local().numel() / x.local().size(column_dim(x, from, to));
  const std::int64_t bytes = length * row * static_cast<std::int64_t>(size_of(dtype));
  const std::array axes{from, to};
  return {pass,
          op,
          x.mesh().axes_name(axes),
          std::move(label),
          1,
          number("column parts", std::ssize(parts)),
          number(fmt::format("column parts of {}", name), bytes)};
}

}  // namespace

ColumnPlan plan_column(const DeviceMesh& mesh, std::int64_t size, int from, int to) {
  const int froms = mesh.size(from), tos = mesh.size(to);
  const int f = mesh.coordinate(from), t = mesh.coordinate(to);
  ColumnPlan plan;
  plan.source = shard_of(size, froms, f);
  plan.target = shard_of(size, tos, t);
  plan.kept = intersect(plan.source, plan.target);
  for (int other = 0; other < froms; ++other) {
    const Interval region = intersect(shard_of(size, froms, other), plan.target);
    if (other != f && !region.empty())
      plan.receives.push_back({rank_at(mesh, from, other, to, f % tos), region});
  }
  for (int other = 0; other < froms; ++other) {
    if (other == f || other % tos != t) continue;
    for (int column = 0; column < tos; ++column) {
      const Interval region = intersect(plan.source, shard_of(size, tos, column));
      if (!region.empty()) plan.sends.push_back({rank_at(mesh, from, other, to, column), region});
    }
  }
  return plan;
}

DTensor exchange_column(const DTensor& x, int from, int to, const std::string& label,
                        CallSite where) {
  const int dim = column_dim(x, from, to);
  const DeviceMesh& mesh = x.mesh();
  const ColumnPlan plan = plan_column(mesh, x.size(dim), from, to);
  Placements placements = x.placements();
  std::swap(placements[static_cast<std::size_t>(from)], placements[static_cast<std::size_t>(to)]);
  const DTensor y = empty_carried(x, x.shape(), placements, x.dtype());
  const auto part = [dim](const DTensor& t, Interval own, Interval region) {
    return part_of(t.local(), dim, own, region);
  };

  const PurposeScope purpose(Purpose::communication);
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (const ColumnPlan::Part& p : plan.sends)
    sends.push_back({p.peer, part(x, plan.source, p.region).contiguous()});
  for (const ColumnPlan::Part& p : plan.receives) {
    const Tensor place = part(y, plan.target, p.region);
    receives.push_back({p.peer, place.is_contiguous()
                                    ? place
                                    : Tensor::empty(place.shape(), x.dtype(), mesh.device())});
  }
  const std::array axes{from, to};
  Pending pending =
      exchange(mesh, {kName, mesh.axes_name(axes), label, where}, std::move(sends), receives);
  if (!plan.kept.empty()) copy(part(x, plan.source, plan.kept), part(y, plan.target, plan.kept));
  pending.wait();
  for (std::size_t k = 0; k < receives.size(); ++k) {
    const Tensor place = part(y, plan.target, plan.receives[k].region);
    if (!place.is_contiguous()) copy(receives[k].data, place);
  }
  return y;
}

ContractMessage column_message(Pass pass, const DTensor& x, const std::string& name, int from,
                               int to, std::string label) {
  const ColumnPlan plan = plan_column(x.mesh(), x.size(column_dim(x, from, to)), from, to);
  return message_of(pass, kName, plan.sends, x, x.dtype(), name, from, to, std::move(label));
}

ContractMessage column_return_message(Pass pass, const DTensor& x, const std::string& name,
                                      int from, int to, std::string label) {
  const ColumnPlan plan = plan_column(x.mesh(), x.size(column_dim(x, from, to)), to, from);
  ContractMessage message =
      message_of(pass, kName, plan.sends, x, x.dtype(), name, from, to, std::move(label));
  const std::array axes{to, from};
  message.axis = x.mesh().axes_name(axes);
  return message;
}

Tensor add_columns(const DeviceMesh& mesh, const Tensor& summands, int dim, std::int64_t size,
                   int from, int to, const std::string& label, CallSite where) {
  const ColumnPlan plan = plan_column(mesh, size, from, to);
  Shape shape = summands.shape();
  shape[static_cast<std::size_t>(dim)] = plan.source.size();
  const Tensor sum = Tensor::zeros(shape, summands.dtype(), summands.device());

  const PurposeScope purpose(Purpose::communication);
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (const ColumnPlan::Part& p : plan.receives)
    sends.push_back({p.peer, part_of(summands, dim, plan.target, p.region).contiguous()});
  for (const ColumnPlan::Part& p : plan.sends) {
    const Shape part = part_of(sum, dim, plan.source, p.region).shape();
    receives.push_back({p.peer, Tensor::empty(part, sum.dtype(), sum.device())});
  }
  const std::array axes{from, to};
  Pending pending =
      exchange(mesh, {kAdjoint, mesh.axes_name(axes), label, where}, std::move(sends), receives);
  if (!plan.kept.empty())
    copy(part_of(summands, dim, plan.target, plan.kept), part_of(sum, dim, plan.source, plan.kept));
  pending.wait();
  for (std::size_t k = 0; k < receives.size(); ++k) {
    const Tensor place = part_of(sum, dim, plan.source, plan.sends[k].region);
    add(1, place, 1, receives[k].data, place);
  }
  return sum;
}

ContractMessage add_columns_message(Pass pass, const DTensor& x, const std::string& name, int from,
                                    int to, DType dtype, std::string label) {
  const ColumnPlan plan = plan_column(x.mesh(), x.size(column_dim(x, from, to)), from, to);
  return message_of(pass, kAdjoint, plan.receives, x, dtype, name, from, to, std::move(label));
}

}  // namespace tessera

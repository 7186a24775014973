// SPDX-License-Identifier: MIT
// Movement of whole DTensors: from one rank to all, to full tensors, between placements.
#include <fmt/format.h>

#include <algorithm>

#include "tessera/mesh/door.hpp"
#include "tessera/mesh/dtensor.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

int dim_of(const Placement& placement) {
  return std::get<Shard>(placement).dim;
}
ReduceOp op_of(const Placement& placement) {
  return std::get<Partial>(placement).op;
}

Tensor own_part(const Tensor& x, int dim, const DeviceMesh& mesh, int axis) {
  const std::int64_t size = x.size(dim) / mesh.size(axis);
  return x.narrow(dim, mesh.coordinate(axis) * size, size).clone();
}

Tensor reduced(const Tensor& x, ReduceOp op, const DeviceMesh& mesh, int axis,
               const std::string& label, CallSite where) {
  const Tensor sum = x.clone();
  all_reduce(mesh, axis, op, sum, label, where);
  return sum;
}

Tensor reduce_to_shard(const Tensor& x, ReduceOp op, int dim, const DeviceMesh& mesh, int axis,
                       const std::string& label, CallSite where) {
  if (op == ReduceOp::max || op == ReduceOp::min)
    return own_part(reduced(x, op, mesh, axis, label, where), dim, mesh, axis);
  if (op == ReduceOp::sum) return reduce_scatter(mesh, axis, x, dim, label, where);
  // The mean is rounded once, as all_reduce does.
  const Tensor mean = reduce_scatter(mesh, axis, x.to(at_least_f32(x.dtype())), dim, label, where);
  scale(1.0 / mesh.size(axis), mean);
  return mean.to(x.dtype());
}

// One transition of the table on one axis.
Tensor transition(const Tensor& x, const Placement& from, const Placement& to,
                  const DeviceMesh& mesh, int axis, const std::string& label, CallSite where) {
  if (is_partial(from))
    return is_replicate(to) ? reduced(x, op_of(from), mesh, axis, label, where)
                            : reduce_to_shard(x, op_of(from), dim_of(to), mesh, axis, label, where);
  if (is_replicate(from)) return own_part(x, dim_of(to), mesh, axis);
  if (is_replicate(to)) return all_gather(mesh, axis, x, dim_of(from), label, where);
  return all_to_all(mesh, axis, x, dim_of(to), dim_of(from), label, where);
}

[[noreturn]] void refuse(const DTensor& x, const std::string& label, const Placements& to,
                         std::string problem, std::string hint) {
  throw PlacementError({.problem = std::move(problem),
                        .operation = "redistribute",
                        .tensor = label,
                        .found = x.describe(),
                        .expected = "a change to " + format(to) + " on " + x.mesh().describe(),
                        .hint = std::move(hint)});
}

void check_transitions(const DTensor& x, const Placements& to, const std::string& label) {
  const Placements& from = x.placements();
  for (std::size_t axis = 0; axis < to.size(); ++axis) {
    if (is_partial(to[axis]) && to[axis] != from[axis])
      refuse(x, label, to,
             fmt::format("no transition {} -> {}", format(from[axis]), format(to[axis])),
             "nothing becomes Partial by redistribution");
    if (!is_shard(to[axis])) continue;
    for (std::size_t other = 0; other < from.size(); ++other)
      if (other != axis && is_shard(from[other], dim_of(to[axis])))
        refuse(
            x, label, to,
            fmt::format("dim {} moves from mesh axis {} to {}", dim_of(to[axis]),
                        x.mesh().axis_name(static_cast<int>(other)),
                        x.mesh().axis_name(static_cast<int>(axis))),
            fmt::format("mesh_transpose(x, {}) exchanges the placements of two axes: one block per "
                        "rank moves",
                        format(to)));
  }
}

thread_local int compute_scopes = 0;

}  // namespace

ComputeScope::ComputeScope() {
  ++compute_scopes;
}
ComputeScope::~ComputeScope() {
  --compute_scopes;
}

void check_redistribution(const DTensor& x, const Placements& placements,
                          const std::string& label) {
  expect(x, "redistribute", label.c_str(), {.allow_partial = true});
  const DeviceMesh& mesh = x.mesh();
  block_of(x.shape(), placements, mesh.shape(), mesh.coordinate(), "redistribute", label.c_str());
  check_transitions(x, placements, label);
}

DTensor redistribute(const DTensor& x, const Placements& placements, const std::string& label,
                     CallSite where) {
  check_redistribution(x, placements, label);
  const DeviceMesh& mesh = x.mesh();
  if (placements == x.placements()) return x;
  Tensor local = x.local().contiguous();
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const Placement& from = x.placements()[static_cast<std::size_t>(axis)];
    const Placement& to = placements[static_cast<std::size_t>(axis)];
    if (from != to) local = transition(local, from, to, mesh, axis, label, where);
  }
  return DTensor::from_local(local, mesh, placements, x.shape(), row_major_strides(x.shape()));
}

Tensor full_tensor(const DTensor& x, CallSite where) {
#ifdef TESSERA_ASSERTIONS
  if (compute_scopes > 0)
    throw GradientError({.problem = "full_tensor() inside a forward or backward pass",
                         .operation = "full_tensor",
                         .found = x.describe(),
                         .hint = "it is for tests and files; use redistribute()"});
#endif
  expect(x, "full_tensor", "", {.allow_partial = true});
  Tensor whole = x.local().contiguous();
  for (int axis = x.mesh().ndim(); axis-- > 0;) {
    const Placement& from = x.placements()[static_cast<std::size_t>(axis)];
    if (!is_replicate(from))
      whole = transition(whole, from, Replicate{}, x.mesh(), axis, "full_tensor", where);
  }
  return whole;
}

DTensor distribute_from_root(const Tensor& full_on_root, const DeviceMesh& mesh,
                             const Placements& placements, const Shape& shape, DType dtype,
                             CallSite where) {
  constexpr const char* kName = "distribute_from_root";
  if (std::any_of(placements.begin(), placements.end(), is_partial))
    throw PlacementError({.problem = "only reductions make Partial tensors",
                          .operation = kName,
                          .found = format(placements),
                          .expected = "S(d) and R"});
  global_block(shape, mesh, placements);  // checks sizes and placements
  const auto check = [&] {
    if (mesh.rank() == 0) check_root_tensor(full_on_root, shape, dtype, kName, "");
  };
  collective_try(mesh, check, where);
  // Axis by axis the blocks shrink and the ranks that hold one grow: before axis m these are the
  // ranks at coordinate 0 of m and of all axes after it.
  Tensor block = mesh.rank() == 0 ? full_on_root.to(mesh.device()).clone() : Tensor();
  Shape local = shape;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const Placement& placement = placements[static_cast<std::size_t>(axis)];
    const int n = mesh.size(axis);
    if (n == 1) continue;
    const bool cut = is_shard(placement);
    if (cut) local[static_cast<std::size_t>(dim_of(placement))] /= n;
    const Group group = group_of(mesh, std::span<const int>(&axis, 1));
    Operation operation(mesh, {cut ? "scatter" : "broadcast", mesh.axis_name(axis), kName, where},
                        {dtype, numel(local), group.ranks.front()});
    const auto& own = mesh.coordinate();
    const bool takes_part =
        std::all_of(own.begin() + axis + 1, own.end(), [](int c) { return c == 0; });
    if (takes_part) {
      const Tensor part = cut || group.me != 0 ? Tensor::empty(local, dtype, mesh.device()) : block;
      if (cut)
        scatter_rounds(operation, group, 0, block, dim_of(placement), part);
      else
        broadcast_rounds(operation, group, 0, part);
      block = part;
    }
    operation.close();
  }
  return DTensor::from_local(block, mesh, placements, shape, row_major_strides(shape));
}

}  // namespace tessera

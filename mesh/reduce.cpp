// SPDX-License-Identifier: MIT
// Reductions: recursive doubling, ring reduce-scatter and ring all-gather, from messages and local
// sums. The order of the sums depends on the group alone, and every rank of it gets the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tessera/mesh/door.hpp"
#include "tessera/mesh/shard.hpp"
#include "tessera/mesh/traffic.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

bool is_integer(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32;
}

Binary integer_form(ReduceOp op) {
  if (op == ReduceOp::sum) return Binary::add;
  return op == ReduceOp::max ? Binary::maximum : Binary::minimum;
}

// out = lower op upper. The order is that of the ranks, so that both partners of a pair compute
// the same bits (signed zeros, NaNs). min of floating values has been turned into max of the
// negatives.
void combine(ReduceOp op, const Tensor& lower, const Tensor& upper, const Tensor& out) {
  if (out.numel() == 0) return;
  if (is_integer(out.dtype())) return binary(integer_form(op), lower, upper, out);
  if (op == ReduceOp::sum) return add(1, lower, 1, upper, out);
  maximum(lower, upper, out);
}

// Flat `x` in place. Ranks beyond the largest power of two hand their values to a partner and get
// the result from it.
void doubling(Operation& operation, const Group& group, ReduceOp op, const Tensor& x) {
  const int n = group.size();
  const int core = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const int me = group.me;
  const int extra = me + core;  // the partner beyond the core
  if (me >= core) {
    operation.round({{group.at(me - core), x}}, {});
    operation.round({}, {{group.at(me - core), x}});
    return;
  }
  const Tensor other = Tensor::empty(x.shape(), x.dtype(), x.device());
  if (extra < n) {
    operation.round({}, {{group.at(extra), other}});
    combine(op, x, other, x);
  }
  for (int bit = 1; bit < core; bit *= 2) {
    const int peer = me ^ bit;
    operation.round({{group.at(peer), x}}, {{group.at(peer), other}});
    if (me < peer)
      combine(op, x, other, x);
    else
      combine(op, other, x, x);
  }
  if (extra < n) operation.round({{group.at(extra), x}}, {});
}

// parts[c] of all ranks are reduced into parts[c] of place c; the other parts are overwritten.
void ring_reduce(Operation& operation, const Group& group, ReduceOp op,
                 const std::vector<Tensor>& parts) {
  const int n = group.size();
  const auto part = [&](int c) -> const Tensor& {
    return parts[static_cast<std::size_t>((c + 2 * n) % n)];
  };
  const Tensor arrived = Tensor::empty(parts.front().shape(), part(0).dtype(), part(0).device());
  for (int step = 0; step < n - 1; ++step) {
    const Tensor& next = part(group.me - 2 - step);
    const Tensor partial =
        next.shape() == arrived.shape() ? arrived : arrived.narrow(0, 0, next.size(0));
    operation.round({{group.at(group.me + 1), part(group.me - 1 - step)}},
                    {{group.at(group.me - 1), partial}});
    combine(op, partial, next, next);
  }
}

// parts[c] of place c goes to all.
void ring_gather(Operation& operation, const Group& group, const std::vector<Tensor>& parts) {
  const int n = group.size();
  const auto part = [&](int c) -> const Tensor& {
    return parts[static_cast<std::size_t>((c + n) % n)];
  };
  for (int step = 0; step < n - 1; ++step)
    operation.round({{group.at(group.me + 1), part(group.me - step)}},
                    {{group.at(group.me - 1), part(group.me - 1 - step)}});
}

void check_reducible(const char* operation, const std::string& label, ReduceOp op, DType dtype) {
  if (is_floating(dtype) || (is_integer(dtype) && op != ReduceOp::avg)) return;
  throw TypeError({.problem = fmt::format("no {} of this dtype", name_of(op)),
                   .operation = operation,
                   .tensor = label,
                   .found = std::string(name_of(dtype)),
                   .expected = "f64, f32, bf16; or i64, i32 for sum, max, min"});
}

void reduce_flat(Operation& operation, const Group& group, ReduceOp op, const Tensor& flat) {
  if (flat.bytes() <= kDoublingBytes) return doubling(operation, group, op, flat);
  std::vector<Tensor> parts;
  for (int c = 0; c < group.size(); ++c) {
    const Interval own = shard_of(flat.numel(), group.size(), c);
    parts.push_back(flat.narrow(0, own.begin, own.size()));
  }
  ring_reduce(operation, group, op, parts);
  ring_gather(operation, group, parts);
}

}  // namespace

void all_reduce(const DeviceMesh& mesh, std::span<const int> axes, ReduceOp op,
                const Tensor& tensor, const std::string& label, CallSite where) {
  all_reduce_as("all_reduce", mesh, axes, op, tensor, label, where);
}

void all_reduce_as(const char* name, const DeviceMesh& mesh, std::span<const int> axes, ReduceOp op,
                   const Tensor& tensor, const std::string& label, CallSite where) {
  const Group group = group_of(mesh, axes);
  check_buffer(mesh, name, label, tensor);
  check_reducible(name, label, op, tensor.dtype());
  if (group.size() == 1) return;
  Operation operation(mesh, {name, mesh.axes_name(axes), label, where}, content_of(tensor, group));
  {
    const PurposeScope purpose(Purpose::communication);
    const bool integer = is_integer(tensor.dtype());
    const bool negate = op == ReduceOp::min && !integer;
    Tensor work = integer ? tensor : tensor.to(at_least_f32(tensor.dtype()));
    work = work.view({work.numel()});
    if (negate) scale(-1, work);
    reduce_flat(operation, group, op == ReduceOp::avg ? ReduceOp::sum : op, work);
    if (negate) scale(-1, work);
    if (op == ReduceOp::avg) scale(1.0 / group.size(), work);
    if (!work.shares_storage(tensor)) copy(work.view(tensor.shape()), tensor);
  }
  tensor.bump_version();
  operation.close();
}

Tensor reduce_scatter(const DeviceMesh& mesh, int axis, const Tensor& tensor, int dim,
                      const std::string& label, CallSite where) {
  const Group group = group_of(mesh, std::span<const int>(&axis, 1));
  check_buffer(mesh, "reduce_scatter", label, tensor);
  if (!is_floating(tensor.dtype()))
    throw TypeError({.problem = "sums of floating dtypes only",
                     .operation = "reduce_scatter",
                     .tensor = label,
                     .found = std::string(name_of(tensor.dtype()))});
  const std::vector<Tensor> views = equal_parts(tensor, dim, group.size(), "reduce_scatter", label);
  if (group.size() == 1) return tensor.clone();
  Operation operation(mesh, {"reduce_scatter", mesh.axis_name(axis), label, where},
                      content_of(tensor, group));
  std::vector<Tensor> parts;
  {
    const PurposeScope purpose(Purpose::communication);
    const Shape shape = views.front().shape();
    for (const Tensor& v : views) {
      parts.push_back(Tensor::empty({numel(shape)}, at_least_f32(v.dtype()), v.device()));
      copy(v, parts.back().view(shape));
    }
    ring_reduce(operation, group, ReduceOp::sum, parts);
  }
  operation.close();
  const Tensor own = Tensor::empty(views.front().shape(), tensor.dtype(), tensor.device());
  copy(parts[static_cast<std::size_t>(group.me)].view(own.shape()), own);
  return own;
}

}  // namespace tessera

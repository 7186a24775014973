// SPDX-License-Identifier: MIT
#include "tessera/autodiff/gradients.hpp"

#include <numeric>

#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/mesh/traffic.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

// 1 / (product of the axes on which the contribution is complete).
double share(const DeviceMesh& mesh, const Placements& placements) {
  double ranks = 1;
  if (mutation() == Mutation::reduce_over_replicate_axis) return 1;
  for (int axis = 0; axis < mesh.ndim(); ++axis)
    if (is_replicate(placements[static_cast<std::size_t>(axis)])) ranks *= mesh.size(axis);
  return 1 / ranks;
}

// All contributions, as one summand on every axis, added into the bucket's slice.
void gather_contributions(const DeviceMesh& mesh, const LeafState& leaf, const Tensor& slice) {
  fill(slice, 0);
  for (const DTensor& c : leaf.contributions)
    add(1, slice, share(mesh, c.placements()),
        c.local().contiguous().view(slice.shape()).to(slice.dtype()), slice);
}

constexpr const char* kReduction = "all_reduce";  // its name in the ledger

std::vector<int> all_axes(const DeviceMesh& mesh) {
  std::vector<int> axes(static_cast<std::size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

// The one buffer in which the gradients of all parameters are summed.
struct Bucket {
  std::int64_t elements = 0;
  DType dtype = DType::f32;
};
Bucket bucket_of(const std::vector<Var>& parameters) {
  Bucket bucket;
  for (const Var& p : parameters) {
    bucket.elements += p.value().local().numel();
    bucket.dtype = promote(bucket.dtype, p.value().dtype());
  }
  return bucket;
}

}  // namespace

DTensor parameter_gradient(const Tensor& local, const DTensor& parameter,
                           const Placements& activation) {
  Placements label;
  for (const Placement& p : activation)
    label.push_back(is_shard(p) ? Placement(Partial{ReduceOp::sum}) : Placement(Replicate{}));
  return DTensor::from_local(local, parameter.mesh(), std::move(label), parameter.shape(),
                             parameter.strides());
}

MessageCount reduction_message(const DeviceMesh& mesh, const std::vector<Var>& parameters) {
  const std::vector<int> axes = all_axes(mesh);
  MessageCount count{Pass::backward, current_scope(), kReduction, mesh.axes_name(axes),
                     "parameter gradients"};
  const Bucket bucket = bucket_of(parameters);
  if (bucket.elements == 0) return count;
  const Traffic traffic =
      all_reduce_traffic(bucket.elements, bucket.dtype, mesh.ranks(), mesh.rank());
  count.count = 1;
  count.messages = traffic.messages;
  count.bytes = traffic.bytes;
  return count;
}

void reduce_gradients(const DeviceMesh& mesh, std::vector<Var>& parameters) {
  std::vector<Var> with_gradient;
  for (const Var& p : parameters)
    if (p.has_grad()) with_gradient.push_back(p);
  if (with_gradient.empty()) return;
  const trace::Span span(trace::Kind::backward, "reduce_gradients");
  std::vector<LeafState*> leaves;
  for (const Var& p : with_gradient) leaves.push_back(&p.leaf());

  const PurposeScope purpose(Purpose::gradient);
  const Bucket sizes = bucket_of(with_gradient);
  const Tensor bucket = Tensor::empty({sizes.elements}, sizes.dtype, mesh.device());
  std::int64_t at = 0;
  for (LeafState* leaf : leaves) {
    const std::int64_t n = leaf->value.local().numel();
    gather_contributions(mesh, *leaf, bucket.narrow(0, at, n));
    at += n;
  }

  if (mutation() != Mutation::skip_parameter_reduction)
    all_reduce(mesh, all_axes(mesh), ReduceOp::sum, bucket, "parameter gradients");

  at = 0;
  for (LeafState* leaf : leaves) {
    const DTensor& value = leaf->value;
    const std::int64_t n = value.local().numel();
    Tensor gradient = Tensor::empty(value.local().shape(), value.dtype(), mesh.device());
    copy(bucket.narrow(0, at, n).view(value.local().shape()), gradient);
    leaf->contributions = {value.with_local(gradient)};
    at += n;
  }
}

}  // namespace tessera

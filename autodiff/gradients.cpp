// SPDX-License-Identifier: MIT
#include "tessera/autodiff/gradients.hpp"

#include <numeric>

#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
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

}  // namespace

DTensor parameter_gradient(const Tensor& local, const DTensor& parameter,
                           const Placements& activation) {
  Placements label;
  for (const Placement& p : activation)
    label.push_back(is_shard(p) ? Placement(Partial{ReduceOp::sum}) : Placement(Replicate{}));
  return DTensor::from_local(local, parameter.mesh(), std::move(label), parameter.shape(),
                             parameter.strides());
}

void reduce_gradients(const DeviceMesh& mesh, std::vector<Var>& parameters) {
  std::vector<LeafState*> leaves;
  std::int64_t elements = 0;
  DType dtype = DType::f32;
  for (Var& p : parameters) {
    LeafState& leaf = p.leaf();
    if (leaf.contributions.empty()) continue;
    leaves.push_back(&leaf);
    elements += leaf.value.local().numel();
    dtype = promote(dtype, at_least_f32(leaf.value.dtype()));
  }
  if (leaves.empty()) return;

  const PurposeScope purpose(Purpose::gradient);
  const Tensor bucket = Tensor::empty({elements}, dtype, mesh.device());
  std::int64_t at = 0;
  for (LeafState* leaf : leaves) {
    const std::int64_t n = leaf->value.local().numel();
    gather_contributions(mesh, *leaf, bucket.narrow(0, at, n));
    at += n;
  }

  std::vector<int> axes(static_cast<std::size_t>(mesh.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  if (mutation() != Mutation::skip_parameter_reduction)
    all_reduce(mesh, axes, ReduceOp::sum, bucket, "parameter gradients");

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

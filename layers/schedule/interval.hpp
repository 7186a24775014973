// SPDX-License-Identifier: MIT
// Interval exchange: a mesh axis cuts a tensor dim into equal owned intervals, and each rank needs
// one interval of that dim, anywhere and of any length. The plan is pure arithmetic on the needs of
// all ranks of the axis; it serves the gather and its adjoint, the scatter-add.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/autodiff/contract.hpp"
#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/shard.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

struct IntervalPlan {
  struct Part {
    int peer;         // rank
    Interval region;  // in global indices, not empty
    bool operator==(const Part&) const = default;
  };
  int axis = 0;                     // of the mesh
  Interval own;                     // what this rank holds
  Interval need;                    // what it reads or writes; may be empty
  std::vector<Part> sends = {};     // what others need of `own`, peers ascending, not itself
  std::vector<Part> receives = {};  // what others own of `need`, likewise
  bool local = false;               // no rank of the mesh sends anything, and all know it
};

// The plan of this rank for a dim of `size` elements. needs[c]: of coordinate c on the axis.
// UnevenError unless the axis divides size; ShapeError unless there is one need for each
// coordinate, RangeError if one is not part of [0, size).
IntervalPlan plan_intervals(const DeviceMesh& mesh, int axis, std::int64_t size,
                            const std::vector<Interval>& needs);
std::int64_t rows_in(const std::vector<IntervalPlan::Part>& parts);

// The same number of integers of every rank of the axis, by coordinate. One all-gather; on a mesh
// without values (a dry run) nothing comes back.
std::vector<std::vector<std::int64_t>> gather_integers(const DeviceMesh& mesh, int axis,
                                                       const std::vector<std::int64_t>& own,
                                                       const std::string& label,
                                                       CallSite where = CallSite::current());
// Collective: the plan for the needs of all ranks, which gather_integers() collects (two integers
// for each). In a dry run every rank needs the whole dim.
IntervalPlan agree_on_intervals(const DeviceMesh& mesh, int axis, std::int64_t size, Interval need,
                                const std::string& label, CallSite where = CallSite::current());

// x [batch, own, features] to [batch, need, features]: one message per peer with an overlap. Any
// strides. Collective over the mesh, like interval_scatter_add().
Tensor interval_gather(const DeviceMesh& mesh, const IntervalPlan& plan, const Tensor& x,
                       const std::string& label, CallSite where = CallSite::current());
// The adjoint: x [batch, need, features] to [batch, own, features], the sum over all ranks of what
// they have for the own interval, zero where nobody has anything. Added in the order of the ranks,
// the own part in its place: reproducible. x is in at least f32.
Tensor interval_scatter_add(const DeviceMesh& mesh, const IntervalPlan& plan, const Tensor& x,
                            const std::string& label, CallSite where = CallSite::current());

// The contract lines of the two; row_bytes: of one index of the dim, over batch and features.
ContractMessage interval_gather_message(Pass pass, const DeviceMesh& mesh, const IntervalPlan& plan,
                                        const Formula& row_bytes, std::string label);
ContractMessage interval_scatter_add_message(Pass pass, const DeviceMesh& mesh,
                                             const IntervalPlan& plan, const Formula& row_bytes,
                                             std::string label);

}  // namespace tessera

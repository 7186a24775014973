// SPDX-License-Identifier: MIT
// Packing of the valid elements of an axis: all of a line go to its left end, in order and across
// the ranks over which the axis is cut, and the axis gets a length of whole windows on every rank.
// pack and unpack are each other's adjoint: partial permutations, exact.
//
// A mask [..., N] of dtype bool says for each line, by its dims before the axis, what is valid; its
// dims after the axis, if any, have size 1. It goes with tensors x [..., N, ...] whose dims before
// the axis are multiples of its own: entry i of such a dim follows entry i / (size of x / size of
// mask) of the mask, which is a broadcast for size 1 and a multiplicity for inner copies. x is
// placed as the mask, but may be sharded along dims after the axis and along those that the mask
// broadcasts.
#pragma once

#include <cstdint>
#include <memory>

#include "tessera/autodiff/tape.hpp"
#include "tessera/layers/schedule/pack_plan.hpp"
#include "tessera/layers/substrate/views.hpp"

namespace tessera {

// What is valid and where it goes: integers, built once and used for any number of tensors, in both
// directions.
struct Packing {
  int axis = 0;
  Form original;  // of the mask
  Form packed;
  PackPlan plan;
};
using SharedPacking = std::shared_ptr<const Packing>;
struct MaskPlan {
  SharedPacking packing;
  Var mask;  // bool: what is valid of the packed axis
};

// The packed axis has the least multiple of w * (ranks on the axis) that holds the longest line of
// the whole tensor, at least one; with keep_length the least that holds N. Messages: all-gather of
// the numbers of valid elements along the axis; unless keep_length, the maximum over the mesh axes
// that shard other dims. Negative dims count from the end of the mask. TypeError: a mask that is
// not bool. PlacementError: an axis that is not sharded. RangeError: w odd or below 2. ShapeError:
// dims after the axis.
MaskPlan plan_pack(const Var& mask, std::int64_t w, int axis, bool keep_length = false);
// The packing that led from one mask to the other. Messages: the all-gather. ShapeError, on all
// ranks, if mask_packed is not what becomes of mask_original (data check).
SharedPacking plan_unpack(const Var& mask_packed, const Var& mask_original, int axis);

// x [..., N, ...] -> [..., L, ...], zero behind the valid elements; and back, zero where the mask
// is 0. Any dtype. Messages: what changes ranks, in one message per peer; the same back in
// backward. Saved: the packing. MeshError, ShapeError, PlacementError: x does not go with the mask.
Var pack(const Var& x, const SharedPacking& packing);
Var unpack(const Var& x, const SharedPacking& packing);

// Plan and move in one. `axis` is that of x.
struct Packed {
  Var x;
  Var mask;
};
Packed pack(const Var& x, const Var& mask, std::int64_t w, int axis, bool keep_length = false);
Var unpack(const Var& x, const Var& mask_packed, const Var& mask_original, int axis);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// Every pair of two dims: pair tensors from singles, and pairs along a whole dim. Results and
// gradients are row-major, gradients have the dtype of the result's; sums are formed in at least
// f32. equal, bit_and and logical_and have no gradient; equal and logical_and are bool.
#pragma once

#include "tessera/autodiff/tape.hpp"

namespace tessera {

enum class Outer {
  sum,
  subtract,
  multiply,
  cdist,  // |l - r| over the last dim, which goes; 0 has a gradient of 0; floating (TypeError)
  equal,
  bit_and  // integers and booleans (TypeError)
};

// y[b,n,m,...] = x[b,n,...] op x_t[b,m,...]: [B,N,...] (S0,S1,R) to [B,N,N,...] (S0,S1,S2) on a
// mesh of any shape whose axes divide N (UnevenError). Without x_t it is x, and gets the gradients
// of both roles. Axis 1 only (RangeError); placements (PlacementError), meshes (MeshError) and
// shapes (ShapeError) are equal.
// Messages: forward an exchange of x_t, on square grids n(x) to the mirror rank; backward an
// exchange of the gradient of that role, in at least f32, and an all_reduce on cp1 for x and for
// x_t, one if they are the same. Saved, if the other role needs a gradient: multiply, the operand
// of each role (x, and the column block of x_t); cdist: both, and y.
Var outer_op(const Var& x, Outer op, int axis = 1);
Var outer_op(const Var& x, const Var& x_t, Outer op, int axis = 1);

enum class ShardwiseOuter { subtract, add, logical_and, equal };

// y[..., l, r, ...] = x[..., l, ...] op y[..., r, ...] along `axis`, which is whole
// (PlacementError, RangeError); all other sizes (ShapeError) and the placements are equal. S(d >
// axis) becomes S(d+1). Messages: none. Saved: nothing.
Var shardwise_outer(const Var& x, const Var& y, int axis, ShardwiseOuter op);

}  // namespace tessera

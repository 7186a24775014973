// SPDX-License-Identifier: MIT
// Changes of placements and transposes, each explicit, on meshes of any shape. No other operation
// moves data between placements. Saved: nothing. A gradient comes back with the placements of x; of
// a Partial x it is replicated, because each summand gets all of it.
#pragma once

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// The same tensor with other placements, axis by axis, ascending; row-major, or x itself if nothing
// changes. Only this operation takes Partial tensors. A dim stays on its mesh axis, and nothing
// becomes Partial (PlacementError); sizes divide (UnevenError). GradientError: Partial max or min.
//   on one axis     forward                     gradient
//   R -> S(d)       own slice                   all_gather
//   S(d) -> R       all_gather                  own slice
//   S(d) -> S(e)    all_to_all                  all_to_all
//   P(sum) -> R     all_reduce                  as it is
//   P(sum) -> S(d)  reduce_scatter              all_gather
//   P(avg)          as P(sum), divided by the size of the axis; the gradient too
Var redistribute(const Var& x, const Placements& placements);
// The same for one mesh axis.
Var replicate(const Var& x, int axis);
Var shard(const Var& x, int axis, int dim);

// Dims d0 and d1 exchanged: a view. Neither is sharded (PlacementError). Messages: none.
Var local_transpose(const Var& x, int dim0, int dim1);

// Two mesh axes exchange their placements (PlacementError for anything else): (S(a),S(b)) becomes
// (S(b),S(a)), (S(a),R) becomes (R,S(a)) and back. The tensor stays the same, as does its order of
// dims in memory; sizes divide by both axes (UnevenError).
// Messages: one exchange each way, on axes of equal size one message of n(x) to the mirror rank.
Var mesh_transpose(const Var& x, const Placements& placements);

// Dims d0 and d1, both sharded (PlacementError), exchanged; the placements stay. The local block is
// a transposed view. Sizes divide by both axes (UnevenError). Messages: those of mesh_transpose.
Var global_transpose(const Var& x, int dim0, int dim1);

}  // namespace tessera

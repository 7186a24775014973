// SPDX-License-Identifier: MIT
// What all Pairformer layers do to the pair tensor, each step with its residual:
//   z += drop_rows(tri_mul_out(z));    z += drop_rows(tri_mul_in(z))
//   z += drop_rows(tri_att_start(z));  z += drop_columns(tri_att_end(z));  z += transition_z(z)
// The layer that has a stack registers its parts, each where the order of parameters wants it.
#pragma once

#include "tessera/layers/run_mode.hpp"
#include "tessera/layers/substrate/gates.hpp"
#include "tessera/layers/trunk/transition.hpp"
#include "tessera/layers/trunk/triangle_attention.hpp"
#include "tessera/layers/trunk/triangle_multiplication.hpp"

namespace tessera {

struct PairStackOptions {
  std::int64_t token_z = 0;
  double dropout = 0.25;
  std::int64_t head_width = 32;  // of the triangle attentions
  std::int64_t num_heads = 4;
  double infinity = 1e9;
};

struct PairStack {
  TriangleMultiplication tri_mul_out, tri_mul_in;
  TriangleAttention tri_att_start, tri_att_end;
  Transition transition_z;
  double dropout;

  PairStack(const Build& build, const PairStackOptions& options);
  // z [B, N, N, token_z], mask [B, N, N]: pair.
  Var forward(Var z, const Var& mask, const RunMode& mode) const;
};

// x + update, of which rows or columns are dropped while training.
Var add_dropped(const Var& x, const Var& update, double p, DropoutMask mask, const RunMode& mode);

}  // namespace tessera

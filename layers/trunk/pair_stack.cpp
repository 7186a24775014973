// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/pair_stack.hpp"

#include "tessera/layers/substrate/elementwise.hpp"

namespace tessera {

PairStack::PairStack(const Build& build, const PairStackOptions& o)
    : tri_mul_out(build, o.token_z, TriangleDirection::outgoing),
      tri_mul_in(build, o.token_z, TriangleDirection::incoming),
      tri_att_start(build, o.token_z, o.head_width, o.num_heads, TriangleNode::starting,
                    o.infinity),
      tri_att_end(build, o.token_z, o.head_width, o.num_heads, TriangleNode::ending, o.infinity),
      transition_z(build, o.token_z, 4 * o.token_z),
      dropout(o.dropout) {}

Var PairStack::forward(Var z, const Var& mask, const RunMode& mode) const {
  const auto update = [&](const auto& layer, DropoutMask dropped) {
    z = add_dropped(z, layer.forward(z, mask), dropout, dropped, mode.part(layer.name()));
  };
  update(tri_mul_out, DropoutMask::rows);
  update(tri_mul_in, DropoutMask::rows);
  update(tri_att_start, DropoutMask::rows);
  update(tri_att_end, DropoutMask::columns);
  return add(z, transition_z.forward(z));
}

Var add_dropped(const Var& x, const Var& update, double p, DropoutMask mask, const RunMode& mode) {
  if (!mode.training || p == 0) return add(x, update);
  return add(x, dropout(update, {.p = p, .mask = mask, .stream = mode.stream}));
}

}  // namespace tessera

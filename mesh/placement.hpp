// SPDX-License-Identifier: MIT
// Where the values of a tensor are along one mesh axis.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace tessera {

enum class ReduceOp { sum, avg, max, min };
const char* name_of(ReduceOp op);

// Coordinate c of an axis of size P owns [c*n/P, (c+1)*n/P) of tensor dim `dim`.
struct Shard {
  int dim;
  bool operator==(const Shard&) const = default;
};
// Equal values on all coordinates of the axis.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};
// The value is the reduction over the axis of the local values. Only parameter gradients before
// their reduction are ever Partial.
struct Partial {
  ReduceOp op = ReduceOp::sum;
  bool operator==(const Partial&) const = default;
};

using Placement = std::variant<Shard, Replicate, Partial>;
using Placements = std::vector<Placement>;  // one per mesh axis, in mesh-axis order

inline bool is_shard(const Placement& p) {
  return std::holds_alternative<Shard>(p);
}
inline bool is_shard(const Placement& p, int dim) {
  return is_shard(p) && std::get<Shard>(p).dim == dim;
}
inline bool is_replicate(const Placement& p) {
  return std::holds_alternative<Replicate>(p);
}
inline bool is_partial(const Placement& p) {
  return std::holds_alternative<Partial>(p);
}

// Where the gradient of a value is: as the value, but replicated where that is Partial, because
// each summand gets all of the gradient of the sum.
Placements gradient_placements(const Placements& value);

std::string format(const Placement& placement);    // "S(1)", "R", "P(sum)"
std::string format(const Placements& placements);  // "(S0,S1,R)"

// The standard placements on the full mesh (dp, cp0, cp1); batch is dim 0.
Placements pair_placements();        // (S0,S1,S2)  pair and msa tensors, windows of pairs
Placements single_placements();      // (S0,S1,R)   [B,N,C]
Placements single_t_placements();    // (S0,R,S1)
Placements replicated_placements();  // (R,R,R)     parameters, losses

}  // namespace tessera

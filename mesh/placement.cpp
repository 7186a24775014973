// SPDX-License-Identifier: MIT
#include "tessera/mesh/placement.hpp"

#include <fmt/format.h>

namespace tessera {

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::max:
      return "max";
    case ReduceOp::min:
      return "min";
  }
  return "?";
}

Placements gradient_placements(const Placements& value) {
  Placements gradient = value;
  for (Placement& p : gradient)
    if (is_partial(p)) p = Replicate{};
  return gradient;
}

std::string format(const Placement& placement) {
  if (const auto* shard = std::get_if<Shard>(&placement)) return fmt::format("S({})", shard->dim);
  if (const auto* partial = std::get_if<Partial>(&placement))
    return fmt::format("P({})", name_of(partial->op));
  return "R";
}

std::string format(const Placements& placements) {
  std::string text = "(";
  for (const Placement& p : placements) {
    if (text.size() > 1) text += ',';
    text += is_shard(p) ? fmt::format("S{}", std::get<Shard>(p).dim) : format(p);
  }
  return text + ")";
}

Placements pair_placements() {
  return {Shard{0}, Shard{1}, Shard{2}};
}
Placements single_placements() {
  return {Shard{0}, Shard{1}, Replicate{}};
}
Placements single_t_placements() {
  return {Shard{0}, Replicate{}, Shard{1}};
}
Placements replicated_placements() {
  return {Replicate{}, Replicate{}, Replicate{}};
}

}  // namespace tessera

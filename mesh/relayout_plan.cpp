// SPDX-License-Identifier: MIT
// The plan of a relayout: pure arithmetic on boxes.
#include <fmt/format.h>

#include <set>

#include "tessera/mesh/relayout.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

std::string format(const Box& box) {
  return fmt::format("[{},{})x[{},{})", box.rows.begin, box.rows.end, box.cols.begin, box.cols.end);
}

// Looks at all ranks, so that every rank refuses the same plans.
void check_covered(const Ownership& source, const Ownership& target) {
  for (std::size_t rank = 0; rank < target.pieces.size(); ++rank)
    for (const Box& piece : target.pieces[rank]) {
      std::int64_t covered = 0;
      for (const auto& owner : source.pieces)
        for (const Box& held : owner) covered += intersect(piece, held).area();
      if (covered != piece.area())
        throw ShapeError({.problem = covered < piece.area()
                                         ? "part of a target piece is held by no rank"
                                         : "source pieces overlap",
                          .operation = "plan_relayout",
                          .tensor = fmt::format("piece {} of rank {}", format(piece), rank),
                          .found = fmt::format("{} elements held", covered),
                          .expected = fmt::format("{}", piece.area())});
    }
}

}  // namespace

Box intersect(const Box& a, const Box& b) {
  const Box both{intersect(a.rows, b.rows), intersect(a.cols, b.cols)};
  return both.area() > 0 ? both : Box{};
}

RelayoutPlan plan_relayout(const Ownership& source, const Ownership& target, int rank) {
  if (source.pieces.size() != target.pieces.size() || rank < 0 ||
      rank >= static_cast<int>(source.pieces.size()))
    throw ShapeError({.problem = "source and target belong to different numbers of ranks",
                      .operation = "plan_relayout",
                      .found = fmt::format("{} and {}, seen from rank {}", source.pieces.size(),
                                           target.pieces.size(), rank)});
  check_covered(source, target);
  const auto own = static_cast<std::size_t>(rank);
  RelayoutPlan plan{rank, source.pieces[own], target.pieces[own], {}, {}};
  // One pass per pair and direction, always over (target piece, source piece).
  for (std::size_t peer = 0; peer < source.pieces.size(); ++peer) {
    for (const Box& wanted : target.pieces[peer])
      for (std::size_t s = 0; s < plan.source.size(); ++s)
        if (const Box region = intersect(wanted, plan.source[s]); region.area() > 0)
          plan.sends.push_back({static_cast<int>(peer), static_cast<int>(s), region});
    for (std::size_t t = 0; t < plan.target.size(); ++t)
      for (const Box& held : source.pieces[peer])
        if (const Box region = intersect(plan.target[t], held); region.area() > 0)
          plan.receives.push_back({static_cast<int>(peer), static_cast<int>(t), region});
  }
  return plan;
}

RelayoutPlan reversed(const RelayoutPlan& plan) {
  return {.rank = plan.rank,
          .source = plan.target,
          .target = plan.source,
          .sends = plan.receives,
          .receives = plan.sends};
}

std::int64_t sent_elements(const RelayoutPlan& plan) {
  std::int64_t elements = 0;
  for (const RelayoutPlan::Part& part : plan.sends)
    if (part.peer != plan.rank) elements += part.region.area();
  return elements;
}

std::int64_t sent_messages(const RelayoutPlan& plan) {
  std::set<int> peers;
  for (const RelayoutPlan::Part& part : plan.sends)
    if (part.peer != plan.rank) peers.insert(part.peer);
  return static_cast<std::int64_t>(peers.size());
}

Ownership tiles(const DeviceMesh& mesh, std::int64_t rows, std::int64_t cols, int row_axis,
                int col_axis) {
  const auto cut = [&](std::int64_t size, int axis, const std::vector<int>& at) {
    return axis < 0 ? Interval{0, size}
                    : shard_of(size, mesh.size(axis), at[static_cast<std::size_t>(axis)]);
  };
  std::vector<int> axes;
  for (const int axis : {row_axis, col_axis})
    if (axis >= 0) axes.push_back(axis);
  Ownership owned{std::vector<std::vector<Box>>(static_cast<std::size_t>(mesh.ranks()))};
  for (const int rank : mesh.group(axes)) {
    const std::vector<int> at = mesh.coordinate_of(rank);
    owned.pieces[static_cast<std::size_t>(rank)] = {
        Box{cut(rows, row_axis, at), cut(cols, col_axis, at)}};
  }
  return owned;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/outer.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;

Inputs one(const Sizes& s) {
  return {single(s)};
}

Inputs two(const Sizes& s) {
  return {single(s), single(s, "x_t")};
}

// Points of which no two are close, and no point of x is close to one of x_t.
InputSpec points(const Sizes& s, const char* name, double shift) {
  InputSpec x = single(s, name);
  x.at = [shift](const std::vector<std::int64_t>& index) {
    return static_cast<double>(index[1]) + shift + 0.3 * static_cast<double>(index[0]) +
           0.1 * static_cast<double>((index[1] * 7 + index[2] * 5) % 11);
  };
  return x;
}

Inputs two_of_points(const Sizes& s) {
  return {points(s, "x", 0), points(s, "x_t", 0.4)};
}

InputSpec kind_of(const Sizes& s, const char* name) {
  return {.name = name,
          .shape = {s.batch, s.tokens, s.channels},
          .placements = single_placements(),
          .kind = InputKind::index,
          .differentiable = false,
          .low = 0,
          .high = 4};
}

Inputs kinds(const Sizes& s) {
  return {kind_of(s, "x"), kind_of(s, "x_t")};
}

InputSpec atoms(const Sizes& s, const char* name, std::int64_t size, InputKind kind) {
  return {.name = name,
          .shape = {s.batch, s.tokens, size, s.tokens},
          .placements = {Shard{0}, Shard{1}, Shard{3}},
          .kind = kind,
          .differentiable = kind == InputKind::values,
          .high = kind == InputKind::index ? 3.0 : 1.0};
}

Inputs along_atoms(const Sizes& s, InputKind kind) {
  return {atoms(s, "x", 3, kind), atoms(s, "y", 5, kind)};
}

Case pairs_of_one(const char* name, const char* description, Outer op) {
  return operation(name, description, one,
                   [op](const Vars& in) { return Vars{outer_op(in[0], op)}; });
}

Case pairs_of_two(const char* name, const char* description, Inputs (*inputs)(const Sizes&),
                  Outer op) {
  return operation(name, description, inputs,
                   [op](const Vars& in) { return Vars{outer_op(in[0], in[1], op, -2)}; });
}

Case shardwise(const char* name, const char* description, InputKind kind, ShardwiseOuter op) {
  return operation(
      name, description, [kind](const Sizes& s) { return along_atoms(s, kind); },
      [op](const Vars& in) { return Vars{shardwise_outer(in[0], in[1], 2, op)}; });
}

}  // namespace

std::vector<Case> outer_cases() {
  return {
      pairs_of_one("outer_op.sum", "x_n + x_m", Outer::sum),
      pairs_of_one("outer_op.subtract", "x_n - x_m", Outer::subtract),
      pairs_of_one("outer_op.multiply", "x_n x_m", Outer::multiply),
      operation(
          "outer_op.cdist", "Distances within one set of points",
          [](const Sizes& s) { return Inputs{points(s, "x", 0)}; },
          [](const Vars& in) { return Vars{outer_op(in[0], Outer::cdist)}; }),
      pairs_of_two("outer_op.sum.two", "x_n + t_m", two, Outer::sum),
      pairs_of_two("outer_op.subtract.two", "x_n - t_m", two, Outer::subtract),
      pairs_of_two("outer_op.multiply.two", "x_n t_m", two, Outer::multiply),
      pairs_of_two("outer_op.cdist.two", "Distances between two sets of points", two_of_points,
                   Outer::cdist),
      operation(
          "outer_op.multiply.constant", "x_n t_m, t without gradient",
          [](const Sizes& s) {
            Inputs in = two(s);
            in[1].differentiable = false;
            return in;
          },
          [](const Vars& in) { return Vars{outer_op(in[0], in[1], Outer::multiply)}; }),
      pairs_of_two("outer_op.equal", "Whether they are of one kind", kinds, Outer::equal),
      pairs_of_two("outer_op.bit_and", "Common bits", kinds, Outer::bit_and),
      shardwise("shardwise_outer.subtract", "Differences along a whole dim", InputKind::values,
                ShardwiseOuter::subtract),
      shardwise("shardwise_outer.add", "Sums along a whole dim", InputKind::values,
                ShardwiseOuter::add),
      shardwise("shardwise_outer.logical_and", "Masks of pairs", InputKind::boolean,
                ShardwiseOuter::logical_and),
      shardwise("shardwise_outer.equal", "Equal numbers along a whole dim", InputKind::index,
                ShardwiseOuter::equal),
  };
}

}  // namespace tessera::harness

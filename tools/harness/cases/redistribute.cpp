// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/redistribute.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;

Inputs one_pair(const Sizes& s) {
  return {pair(s)};
}

Inputs one_single(const Sizes& s) {
  return {single(s)};
}

// Rows and columns of different sizes, both divisible by both axes.
Inputs oblong(const Sizes& s) {
  return {{.name = "x",
           .shape = {s.batch, s.tokens, 2 * s.tokens, s.channels},
           .placements = pair_placements()}};
}

Inputs long_last(const Sizes& s) {
  return {{.name = "x",
           .shape = {s.batch, s.tokens, s.tokens, s.tokens * s.batch},
           .placements = {Replicate{}, Shard{1}, Shard{2}}}};
}

Inputs columns(const Sizes& s) {
  InputSpec x = single(s);
  x.placements = single_t_placements();
  return {x};
}

Case moved(const char* name, const char* description, Inputs (*inputs)(const Sizes&),
           Placements placements) {
  return operation(name, description, inputs,
                   [placements](const Vars& in) { return Vars{redistribute(in[0], placements)}; });
}

Case exchanged(const char* name, const char* description, Inputs (*inputs)(const Sizes&),
               Placements placements) {
  return operation(name, description, inputs, [placements](const Vars& in) {
    return Vars{mesh_transpose(in[0], placements)};
  });
}

}  // namespace

std::vector<Case> redistribute_cases() {
  const Replicate R;
  return {
      moved("redistribute.gather", "The columns of a pair tensor on every rank of a row", one_pair,
            {Shard{0}, Shard{1}, R}),
      moved("redistribute.slice", "Gathered rows, own part of the last dim", long_last,
            {Shard{3}, Shard{1}, Shard{2}}),
      moved("redistribute.all_to_all", "From columns to positions of the last dim", long_last,
            {Replicate{}, Shard{1}, Shard{3}}),
      moved("redistribute.everywhere", "The whole tensor on every rank", one_pair, {R, R, R}),
      operation("replicate", "One mesh axis", one_pair,
                [](const Vars& in) { return Vars{replicate(in[0], 1)}; }),
      operation("shard", "One mesh axis", one_single,
                [](const Vars& in) { return Vars{shard(replicate(in[0], 1), 2, 1)}; }),
      operation(
          "local_transpose", "Batch and channels of a single tensor on the grid",
          [](const Sizes& s) {
            return Inputs{{.name = "x",
                           .shape = {3, s.tokens, s.channels, s.tokens},
                           .placements = {Replicate{}, Shard{1}, Shard{3}}}};
          },
          [](const Vars& in) { return Vars{local_transpose(in[0], 0, -2)}; }),
      exchanged("mesh_transpose", "From rows to columns", one_single, single_t_placements()),
      exchanged("mesh_transpose.back", "From columns to rows", columns, single_placements()),
      exchanged("mesh_transpose.pair", "Rows and columns of a pair tensor", oblong,
                {Shard{0}, Shard{2}, Shard{1}}),
      operation("global_transpose", "Rows and columns of a pair tensor", one_pair,
                [](const Vars& in) { return Vars{global_transpose(in[0], 1, 2)}; }),
      operation("global_transpose.oblong", "Rows and columns of different sizes", oblong,
                [](const Vars& in) { return Vars{global_transpose(in[0], -2, 1)}; }),
  };
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/windows.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;

// As many windows as the problem has tokens; `rest` are the dims after the batch.
InputSpec atoms(const Sizes& s, Shape rest, Placements placements = single_placements()) {
  rest.insert(rest.begin(), s.batch);
  return {.name = "x", .shape = std::move(rest), .placements = std::move(placements)};
}

}  // namespace

std::vector<Case> windows_cases() {
  return {
      operation(
          "sliding_windows", "Overlapping windows of a whole dim, over both ends",
          [](const Sizes& s) {
            return Inputs{atoms(s, {5, s.tokens, 3}, {Shard{0}, Shard{2}, Replicate{}})};
          },
          [](const Vars& in) {
            return Vars{sliding_windows(in[0], {-2, 0, 1, 4}, 3, 1)};
          }),
      operation(
          "sliding_windows_sharded", "Half-windows to key windows",
          [](const Sizes& s) {
            return Inputs{atoms(s, {2 * s.tokens, 3, s.channels})};
          },
          [](const Vars& in) { return Vars{sliding_windows_sharded(in[0], 4, 1)}; }),
      operation(
          "sliding_windows_sharded.far", "Windows wider than the shards of some meshes",
          [](const Sizes& s) {
            return Inputs{atoms(s, {3, 2 * s.tokens, 1}, {Shard{0}, Replicate{}, Shard{2}})};
          },
          [](const Vars& in) { return Vars{sliding_windows_sharded(in[0], 14, 2)}; }),
      operation(
          "to_window_keys", "Positions to key windows",
          [](const Sizes& s) {
            return Inputs{atoms(s, {4 * s.tokens, s.channels})};
          },
          [](const Vars& in) { return Vars{to_window_keys(in[0], 4, 12)}; }),
      operation(
          "to_window_keys.mask", "Key windows of a mask",
          [](const Sizes& s) {
            InputSpec mask = atoms(s, {2 * s.tokens});
            mask.kind = InputKind::mask;
            mask.differentiable = false;
            return Inputs{mask};
          },
          [](const Vars& in) { return Vars{to_window_keys(in[0], 2, 8)}; }),
      operation(
          "query_windows_to_keys", "Query windows to key windows, channels sharded",
          [](const Sizes& s) {
            return Inputs{atoms(s, {s.tokens, 2, s.tokens}, {Shard{0}, Shard{1}, Shard{3}})};
          },
          [](const Vars& in) { return Vars{query_windows_to_keys(in[0], 6)}; }),
  };
}

}  // namespace tessera::harness

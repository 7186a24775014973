// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/atom_maps.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;
using Index = std::vector<std::int64_t>;
constexpr std::int64_t kAtoms = 3;   // places for atoms of a token, some of them padding
constexpr std::int64_t kCopies = 2;  // of each sample

InputSpec index(const char* name, const Shape& shape, double (*at)(const Index&)) {
  return {.name = name,
          .shape = shape,
          .placements = single_placements(),
          .kind = InputKind::index,
          .differentiable = false,
          .at = at};
}

InputSpec tok_id(const Sizes& s) {
  return index("tok_id", {s.batch, kAtoms * s.tokens},
               [](const Index& at) { return static_cast<double>(at[1] / kAtoms); });
}

// One of the atoms of each token, and none of some.
InputSpec rep(const Sizes& s) {
  return index("rep", {s.batch, s.tokens}, [](const Index& at) {
    return at[1] % 5 == 1 ? -1.0 : static_cast<double>(kAtoms * at[1] + at[1] % kAtoms);
  });
}

InputSpec mask(const Sizes& s) {
  return {.name = "mask",
          .shape = {s.batch, kAtoms * s.tokens},
          .placements = single_placements(),
          .kind = InputKind::boolean,
          .differentiable = false};
}

InputSpec atoms(const Sizes& s, std::int64_t copies) {
  return {.name = "a",
          .shape = {copies * s.batch, kAtoms * s.tokens, s.channels},
          .placements = single_placements()};
}

}  // namespace

std::vector<Case> atom_map_cases() {
  return {
      operation(
          "token_to_atom", "The token's value for each of its atoms",
          [](const Sizes& s) {
            return Inputs{single(s, "s"), tok_id(s), mask(s)};
          },
          [](const Vars& in) {
            return Vars{token_to_atom(in[0], atom_map(in[1], in[0].value().size(1), in[2]))};
          }),
      operation(
          "atom_to_token", "The mean of the token's atoms, for copies of each sample",
          [](const Sizes& s) {
            return Inputs{atoms(s, kCopies), tok_id(s), mask(s)};
          },
          [](const Vars& in) {
            const std::int64_t tokens = in[0].value().size(1) / kAtoms;
            return Vars{atom_to_token(in[0], atom_map(in[1], tokens, in[2]))};
          }),
      operation(
          "rep_atom_to_token", "The representative atom of each token, for copies of each sample",
          [](const Sizes& s) {
            return Inputs{atoms(s, kCopies), rep(s)};
          },
          [](const Vars& in) {
            const std::int64_t n = in[0].value().size(1);
            return Vars{rep_atom_to_token(in[0], representative_map(in[1], n))};
          }),
      operation(
          "pair_token_to_atom", "The value of both atoms' tokens",
          [](const Sizes& s) {
            return Inputs{pair(s, "z"), tok_id(s), mask(s)};
          },
          [](const Vars& in) {
            const std::int64_t tokens = in[0].value().size(1);
            return Vars{pair_token_to_atom(in[0], pair_atom_map(in[1], tokens, in[2]))};
          }),
  };
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/pack.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;

// Packed axes are whole windows on every rank, so that their length depends on the mesh unless it
// divides by all: two windows of 2 for each token.
constexpr std::int64_t kWindow = 2;
std::int64_t atoms(const Sizes& s) {
  return 2 * kWindow * s.tokens;
}

InputSpec values(const Sizes& s, std::int64_t copies = 1) {
  return {.name = "x", .shape = {copies * s.batch, atoms(s), 3}, .placements = single_placements()};
}

InputSpec mask_of(const Sizes& s, const char* name = "mask") {
  return {.name = name,
          .shape = {s.batch, atoms(s)},
          .placements = single_placements(),
          .kind = InputKind::boolean,
          .differentiable = false};
}

// The first line of every sample is all valid, so that the packed length is that of the axis;
// others have gaps that grow.
InputSpec full_and_gaps(const Sizes& s) {
  InputSpec mask = mask_of(s);
  mask.at = [](const std::vector<std::int64_t>& index) {
    return index[0] == 0 || (index[1] * index[1]) % 7 < 3;
  };
  return mask;
}

}  // namespace

std::vector<Case> pack_cases() {
  return {
      operation(
          "pack", "Valid elements to the left, length of the longest line",
          [](const Sizes& s) {
            return Inputs{values(s), full_and_gaps(s)};
          },
          [](const Vars& in) {
            const Packed packed = pack(in[0], in[1], kWindow, 1);
            return Vars{packed.x, packed.mask};
          },
          {"y", "packed_mask"}),
      operation(
          "pack.keep_length", "Valid elements to the left, length kept, three copies of each line",
          [](const Sizes& s) {
            return Inputs{values(s, 3), mask_of(s)};
          },
          [](const Vars& in) { return Vars{pack(in[0], in[1], kWindow, 1, true).x}; }),
      operation(
          "unpack", "Packed and back on one plan",
          [](const Sizes& s) {
            return Inputs{values(s), mask_of(s)};
          },
          [](const Vars& in) {
            const SharedPacking packing = plan_pack(in[1], kWindow, 1, true).packing;
            return Vars{unpack(pack(in[0], packing), packing)};
          }),
      operation(
          "unpack.masks", "To the places of a mask that is packed too",
          [](const Sizes& s) {
            return Inputs{values(s), mask_of(s)};
          },
          [](const Vars& in) {
            const SharedPacking packing = plan_pack(in[1], kWindow, 1, true).packing;
            const Var packed = pack(in[1], packing);
            return Vars{unpack(in[0], packed, in[1], 1)};
          }),
  };
}

}  // namespace tessera::harness

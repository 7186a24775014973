// SPDX-License-Identifier: MIT
// How the valid elements of lines move to the left, in order, across the ranks that a line is cut
// over. Arithmetic on the numbers of valid elements of all parts and the own valid positions.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/mesh/shard.hpp"

namespace tessera {

struct PackPlan {
  int parts = 1;            // of a line
  int me = 0;               // the own part
  std::int64_t length = 0;  // of the own part
  std::int64_t packed = 0;  // of the own part once packed
  std::int64_t lines = 0;
  std::vector<std::int64_t> counts;  // [parts, lines]: valid elements
  std::vector<std::int64_t> valid;   // positions of the own ones, ascending, line after line

  // Where the valid elements of a part stand in the packed line.
  Interval run(int part, std::int64_t line) const;
  std::int64_t total(std::int64_t line) const { return run(parts - 1, line).end; }
};

// `lines` lines of `length` valid (not 0) and other elements; counts and packed length not yet
// known.
PackPlan plan_of_mask(const std::vector<std::uint8_t>& mask, std::int64_t lines);
// The least multiple of window * parts, at least one, that is not below `longest`.
std::int64_t packed_length(std::int64_t longest, std::int64_t window, int parts);

// One end of the move, of a rank: rows by peer, then line, then position. Both ends list the rows
// that they share in this order. line_of[l] is the line of the plan that line l of the tensor
// follows.
struct PackEnd {
  std::vector<std::int64_t> rows;    // line * (length of the own part) + position
  std::vector<std::int64_t> counts;  // by part of the peer

  std::int64_t to_others(int me) const;  // rows
  std::int64_t peers(int me) const;      // others with rows
};
PackEnd original_end(const PackPlan& plan, const std::vector<std::int64_t>& line_of);
PackEnd packed_end(const PackPlan& plan, const std::vector<std::int64_t>& line_of);

}  // namespace tessera

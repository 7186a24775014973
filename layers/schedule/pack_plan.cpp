// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/pack_plan.hpp"

#include <algorithm>

namespace tessera {
namespace {

std::int64_t count_of(const PackPlan& plan, int part, std::int64_t line) {
  return plan.counts[static_cast<std::size_t>(part * plan.lines + line)];
}

Interval packed_part(const PackPlan& plan, int part) {
  return {part * plan.packed, (part + 1) * plan.packed};
}

// Lists what each peer shares with this rank: run(peer, line) of packed positions, as row(l, line,
// position).
template <class Run, class Row>
PackEnd end_of(const PackPlan& plan, const std::vector<std::int64_t>& line_of, const Run& run,
               const Row& row) {
  PackEnd end;
  for (int peer = 0; peer < plan.parts; ++peer) {
    const auto before = std::ssize(end.rows);
    for (std::int64_t l = 0; l < std::ssize(line_of); ++l) {
      const std::int64_t line = line_of[static_cast<std::size_t>(l)];
      const Interval shared = run(peer, line);
      for (std::int64_t at = shared.begin; at < shared.end; ++at)
        end.rows.push_back(row(l, line, at));
    }
    end.counts.push_back(std::ssize(end.rows) - before);
  }
  return end;
}

}  // namespace

Interval PackPlan::run(int part, std::int64_t line) const {
  std::int64_t begin = 0;
  for (int p = 0; p < part; ++p) begin += count_of(*this, p, line);
  return {begin, begin + count_of(*this, part, line)};
}

PackPlan plan_of_mask(const std::vector<std::uint8_t>& mask, std::int64_t lines) {
  PackPlan plan;
  plan.lines = lines;
  plan.length = std::ssize(mask) / lines;
  for (std::int64_t k = 0; k < std::ssize(mask); ++k)
    if (mask[static_cast<std::size_t>(k)] != 0) plan.valid.push_back(k % plan.length);
  for (std::int64_t line = 0; line < lines; ++line) {
    const auto begin = mask.begin() + line * plan.length;
    plan.counts.push_back(
        std::count_if(begin, begin + plan.length, [](std::uint8_t v) { return v != 0; }));
  }
  return plan;
}

std::int64_t packed_length(std::int64_t longest, std::int64_t window, int parts) {
  const std::int64_t block = window * parts;
  return block * std::max<std::int64_t>(1, (longest + block - 1) / block);
}

PackEnd original_end(const PackPlan& plan, const std::vector<std::int64_t>& line_of) {
  // Of each line, what to add to a packed position to have the index of the own valid position.
  std::vector<std::int64_t> shift;
  std::int64_t first = 0;
  for (std::int64_t line = 0; line < plan.lines; ++line) {
    shift.push_back(first - plan.run(plan.me, line).begin);
    first += count_of(plan, plan.me, line);
  }
  return end_of(
      plan, line_of,
      [&](int peer, std::int64_t line) {
        return intersect(plan.run(plan.me, line), packed_part(plan, peer));
      },
      [&](std::int64_t l, std::int64_t line, std::int64_t at) {
        const std::int64_t k = at + shift[static_cast<std::size_t>(line)];
        return l * plan.length + plan.valid[static_cast<std::size_t>(k)];
      });
}

PackEnd packed_end(const PackPlan& plan, const std::vector<std::int64_t>& line_of) {
  return end_of(
      plan, line_of,
      [&](int peer, std::int64_t line) {
        return intersect(plan.run(peer, line), packed_part(plan, plan.me));
      },
      [&](std::int64_t l, std::int64_t, std::int64_t at) {
        return l * plan.packed + at - plan.me * plan.packed;
      });
}

std::int64_t PackEnd::to_others(int me) const {
  return std::ssize(rows) - counts[static_cast<std::size_t>(me)];
}

std::int64_t PackEnd::peers(int me) const {
  std::int64_t peers = 0;
  for (std::int64_t part = 0; part < std::ssize(counts); ++part)
    peers += part != me && counts[static_cast<std::size_t>(part)] > 0;
  return peers;
}

}  // namespace tessera

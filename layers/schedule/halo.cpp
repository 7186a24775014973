// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/halo.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/runtime/error.hpp"

namespace tessera {

std::int64_t window_start(std::int64_t window, std::int64_t h) {
  return 1 - h / 2 + 2 * window;
}

std::vector<Interval> window_needs(std::int64_t windows, std::int64_t h, int parts,
                                   const char* operation) {
  if (windows % parts != 0)
    throw UnevenError({.problem = "every rank has equally many windows",
                       .operation = operation,
                       .found = fmt::format("{} windows on {} ranks", windows, parts),
                       .expected = fmt::format("a multiple of {}", parts),
                       .hint = "pack() makes the length a multiple of window and ranks"});
  const std::int64_t own = windows / parts;
  std::vector<Interval> needs;
  for (int c = 0; c < parts; ++c)
    needs.push_back({std::max<std::int64_t>(0, window_start(c * own, h)),
                     std::min(2 * windows, window_start((c + 1) * own - 1, h) + h)});
  return needs;
}

}  // namespace tessera

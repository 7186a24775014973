// SPDX-License-Identifier: MIT
// What the ranks of a cut axis need of it to see sliding windows that go over its cuts: their own
// part and a halo around it, from as many neighbours on either side as it takes. Arithmetic on
// numbers that all ranks know; the exchange is that of intervals (interval.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/mesh/shard.hpp"

namespace tessera {

// Windows of h rows (h even), two rows apart: window q begins at row 1 - h/2 + 2q and goes over
// both ends of the axis.
std::int64_t window_start(std::int64_t window, std::int64_t h);
// The rows, of 2*windows, that each of `parts` ranks needs for its equal part of the windows
// (UnevenError). `operation` goes into the message.
std::vector<Interval> window_needs(std::int64_t windows, std::int64_t h, int parts,
                                   const char* operation = "window_needs");

}  // namespace tessera

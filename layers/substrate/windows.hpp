// SPDX-License-Identifier: MIT
// Sliding windows over an axis of atoms. An axis of N = K W positions has K query windows of W
// (even) positions and 2K half-windows of W/2; the key window of query window q is the h = 2H/W
// (even) half-windows 1 - h/2 + 2q ..., zero beyond the ends. Any dtype and mesh; an axis is cut
// along one mesh axis of any size. Gradients of overlapping windows are added in at least f32.
// Saved: sizes only. Negative dims count from the end. Results are row-major.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// [..., L, ...] -> [..., n, h, ...]: entry (w, t) is x[starts[w] + t], zero outside 0..L-1. `axis`
// is not sharded (PlacementError: use sliding_windows_sharded); S(d > axis) become S(d+1). No
// messages. RangeError: no windows, h < 1.
Var sliding_windows(const Var& x, std::vector<std::int64_t> starts, std::int64_t h, int axis);

// The three below exchange halos on the mesh axis that shards the windows (which must be one:
// PlacementError): forward, rows of x; backward, sums in at least f32. K must divide by its ranks
// (UnevenError).
//
// Half-windows to key windows: [..., 2K, W/2, ...] -> [..., K, h, W/2, ...], S(axis) stays, S(d >
// axis) become S(d+1). UnsupportedError: axis+1 is sharded. ShapeError: an odd size. RangeError: h.
Var sliding_windows_sharded(const Var& x, std::int64_t h, int axis);
// Positions to key windows: [B, N, ...] -> [B, K, H, ...]. ShapeError: N is no multiple of W.
// RangeError: W odd or below 2; H no positive multiple of W.
Var to_window_keys(const Var& x, std::int64_t w, std::int64_t h);
// Query windows to key windows: [B, K, W, ...] -> [B, K, H, ...], W not sharded.
Var query_windows_to_keys(const Var& x, std::int64_t h);

}  // namespace tessera

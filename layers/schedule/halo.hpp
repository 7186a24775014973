// SPDX-License-Identifier: MIT
// Halos of an axis that is cut into equal parts: every rank needs one interval of its rows, its own
// and those around them, from as many neighbours on either side as it takes. Plans are arithmetic
// on numbers that all ranks know.
#pragma once

#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/shard.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

struct HaloPlan {
  struct Part {
    int coordinate;  // of the other rank on the axis
    Interval rows;   // of the whole axis
  };
  Interval owned;
  Interval needed;
  std::vector<Part> sends;     // own rows that others need, by ascending coordinate
  std::vector<Part> receives;  // needed rows of others, by ascending coordinate

  std::int64_t sent_rows() const;
  std::int64_t received_rows() const;
};
// Coordinate c owns part c of `rows` and needs needed[c], which holds its part; `me` is the own
// one.
HaloPlan plan_halo(std::int64_t rows, const std::vector<Interval>& needed, int me);

// Windows of h rows (h even), two rows apart: window q begins at row 1 - h/2 + 2q and goes over
// both ends of the axis.
std::int64_t window_start(std::int64_t window, std::int64_t h);
// `windows` of them over 2*windows rows, cut into `parts` equal parts (UnevenError): coordinate c
// owns the rows [2q, 2q + 2) of its windows q, and needs all rows that these see. `operation` goes
// into the message.
HaloPlan plan_window_halo(std::int64_t windows, std::int64_t h, int parts, int me,
                          const char* operation = "plan_window_halo");

// The needed rows [batch, needed, n] from the own ones [batch, owned, n] of all ranks of a mesh
// axis. One message per peer. Collective over the mesh.
Tensor gather_halo(const DeviceMesh& mesh, int axis, const HaloPlan& plan, const Tensor& own,
                   const std::string& label);
// The adjoint: terms [batch, needed, n] of all ranks to sums [batch, owned, n], own terms first,
// then those of the others by ascending coordinate.
Tensor scatter_halo(const DeviceMesh& mesh, int axis, const HaloPlan& plan, const Tensor& terms,
                    const std::string& label);

}  // namespace tessera

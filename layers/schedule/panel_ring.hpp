// SPDX-License-Identifier: MIT
// The contraction engine's movement: skews two operands into their windows of panels, then feeds
// panel after panel to a block function while the next ones travel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tessera/layers/schedule/panel_plan.hpp"
#include "tessera/mesh/device_mesh.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// The own tile [batch, rows, cols] of an operand and which index of it is contracted.
struct Operand {
  Tensor tile;
  Contracted contracted = Contracted::cols;
  const char* name = "";  // for ledgers and messages
};

// Runs block(x_panel, y_panel, step) for step = 0 .. L-1 on this rank of the CP grid of a mesh
// (dp, cp0, cp1). Panels are [batch, rows, cols] in the orientation of the operand's tile, with the
// contracted dim cut to the panel. The block reads only.
//
// Messages per rank, R0 x R1 grid, tile bytes T: one relayout per operand (at most T each; none if
// the operand is already in place), then x: R1-1 tiles' worth of panels along cp1, y: R0-1 along
// cp0. Buffers: the windows and one spare panel per operand.
// Errors: ShapeError, UnevenError via the tensors' own checks.
void contract_panels(
    const DeviceMesh& mesh, const Operand& x, const Operand& y,
    const std::function<void(const Tensor& x_panel, const Tensor& y_panel, int step)>& block);

}  // namespace tessera

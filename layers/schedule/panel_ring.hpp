// SPDX-License-Identifier: MIT
// The contraction engine's movement: skews two operands into their windows of panels, then feeds
// panel after panel to a block function while the next ones travel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/autodiff/contract.hpp"
#include "tessera/layers/schedule/panel_plan.hpp"
#include "tessera/mesh/device_mesh.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// An operand by name, and which index of its tile is contracted.
struct PanelOperand {
  const char* name = "";
  Contracted contracted = Contracted::cols;
};

// The same with the own tile [batch, rows, cols].
struct Operand {
  Tensor tile;
  Contracted contracted = Contracted::cols;
  const char* name = "";  // for ledgers and messages
};

// What a block function gets: panels [batch, rows, cols] in the orientation of the operand's tile,
// with the contracted dim cut to the panel. It reads only.
struct PanelStep {
  const Tensor& x;
  const Tensor& y;
  int step;                  // 0 .. L-1
  std::int64_t batch_begin;  // of the tiles' batch; the panels hold the matrices from here on
};

// Runs block() for every step on this rank of the CP grid of a mesh (dp, cp0, cp1). Tiles that are
// large are taken in K groups of matrices, one after the other, so that the buffers stay small
// beside a tile: K = ring_groups().
//
// Messages per rank, R0 x R1 grid, tile bytes T, each K times with a K-th of the bytes: one
// relayout per operand (at most T each; none if the operand is already in place), then x: R1-1
// tiles' worth of panels along cp1, y: R0-1 along cp0. Buffers: for each operand a K-th of its
// window and one spare panel.
void contract_panels(const DeviceMesh& mesh, const Operand& x, const Operand& y,
                     const std::function<void(const PanelStep&)>& block);

// The messages of contract_panels(): sizes are those of the local batch and the global matrices.
struct PanelSizes {
  Formula batch, rows, cols;
  Formula element_bytes;
};
std::vector<ContractMessage> panel_messages(Pass pass, const PanelSizes& sizes,
                                            const PanelOperand& x, const PanelOperand& y);

// Groups of at least 1 MiB of the tile, at most 8, at most one per matrix; 1 on a single rank.
std::int64_t ring_groups(std::int64_t ranks, std::int64_t tile_bytes, std::int64_t matrices);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// The contraction engine's movement: skews two operands into their windows of panels, then feeds
// panel after panel to a block function while the next ones travel. In backward, sums of gradients
// travel beside the panels that they belong to, and are brought home at the end.
//
// Tiles and panels are [batch, rows, cols] with the contracted dim cut to N/L. Channels may be part
// of the batch or of the columns ([B, rows, cols*C]): cuts fall on whole tokens.
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

// x shares I_i with the result and travels along cp1; y shares J_j and travels along cp0.
enum class Side { x, y };

// An operand by name, and which index of its tile at rest is contracted.
struct PanelOperand {
  const char* name = "";  // for ledgers and messages
  Contracted contracted = Contracted::cols;
  // The tensors are the transposes, [batch, cols, rows], of the tile at rest and of its panels.
  bool transposed = false;
};

// The panels of one side that this rank holds, front first.
using Window = std::vector<Tensor>;

// Brings a tile into the start position: wait() returns the window. One relayout, of at most the
// tile's bytes; none if the operand is in place (on one rank the window is the tile itself).
PendingRelayout start_skew(const DeviceMesh& mesh, Side side, const PanelOperand& operand,
                           const Tensor& tile);
// The way back: a window in the start position becomes the tile at rest.
Tensor unskew(const DeviceMesh& mesh, Side side, const PanelOperand& operand, const Window& window);

// What travels on one side.
struct Travelling {
  const char* name = "";
  Window panels;     // of any shape, all alike: whatever the block function reads
  Window sums = {};  // one per panel, zero at the start, in at least f32; empty: none
};

// What a block function gets. It reads the panels, and adds to the sums if there are any.
struct PanelStep {
  const Tensor& x;
  const Tensor& y;
  Tensor dx;
  Tensor dy;
  int step;  // 0 .. L-1
  // Lets messages move; for long blocks, to be called between parts of their work.
  std::function<void()> progress;
  // Of contract_panels(): first of the units that the panels hold.
  std::int64_t unit_begin = 0;
};
using PanelBlock = std::function<void(const PanelStep&)>;

// All L steps, from the start position. Afterwards the panels are gone; the sums are complete and
// in the start position again.
// Messages per rank: windows' worth of panels, R of sums, L/R panels per window, where R is
// R1 along cp1 for x and R0 along cp0 for y; nothing if R is 1. Buffers: one spare panel; of sums,
// two more if a window has one panel, else one.
void rotate_panels(const DeviceMesh& mesh, Travelling& x, Travelling& y, const PanelBlock& block);

// An operand with its tile.
struct Operand {
  Tensor tile;
  Contracted contracted = Contracted::cols;
  const char* name = "";
};

// Skew and rotation without sums. The batch of both tiles consists of `units` equal parts that are
// independent (samples and channels or heads): tiles that are large are taken in K groups of units,
// one after the other, so that the buffers stay small beside a tile: K = ring_groups().
//
// Messages per rank, R0 x R1 grid, tile bytes T, each K times with a K-th of the bytes: one
// relayout per operand, then x: R1-1 tiles' worth of panels along cp1, y: R0-1 along cp0. Buffers:
// for each operand a K-th of its window and one spare panel.
void contract_panels(const DeviceMesh& mesh, const Operand& x, const Operand& y, std::int64_t units,
                     const PanelBlock& block);

// How many groups K: each has at least `bytes` of a tile, large enough for the bandwidth of any
// network, and there are at most `most`. Small groups need less memory and more messages; results
// differ by rounding at most. Equal on all ranks, set between passes (RangeError below 1).
struct GroupLimits {
  std::int64_t bytes = 1 << 20;
  std::int64_t most = 8;
};
void set_group_limits(const GroupLimits& limits);
// At most one group per unit; 1 on a single rank.
std::int64_t ring_groups(std::int64_t ranks, std::int64_t tile_bytes, std::int64_t units);

// Contract lines. `batch` is that of one rank, rows and cols those of the whole matrix.
struct PanelSizes {
  Formula batch, rows, cols;
  Formula element_bytes;
};
ContractMessage skew_message(Pass pass, Side side, const PanelSizes& sizes,
                             const PanelOperand& operand);
ContractMessage unskew_message(Pass pass, Side side, const PanelSizes& sizes,
                               const PanelOperand& operand);
// Of one rotation; `window_bytes`: those of all panels (sums) that a rank holds.
ContractMessage ring_message(Pass pass, Side side, const char* name, const Formula& window_bytes);
ContractMessage sums_message(Pass pass, Side side, const char* name, const Formula& window_bytes);
// The same bytes in K groups, one after the other: K times the operations and messages.
std::vector<ContractMessage> in_groups(std::vector<ContractMessage> lines, const Formula& groups);
// K of contract_panels() for tiles of this many bytes.
Formula ring_groups(const Formula& tile_bytes, const Formula& units);
// Those of contract_panels(); x_batch and y_batch are multiples of the units.
std::vector<ContractMessage> panel_messages(Pass pass, const PanelSizes& x_sizes,
                                            const PanelOperand& x, const PanelSizes& y_sizes,
                                            const PanelOperand& y, const Formula& units);

}  // namespace tessera

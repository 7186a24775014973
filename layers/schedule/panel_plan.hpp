// SPDX-License-Identifier: MIT
// The contraction engine's plan: which panels a rank holds, in which step it uses them, and which
// it passes on. Pure arithmetic.
//
//   Z(i,j) = sum over panels p of block( X(i;p), Y(p;j) )
//
// on an R0 x R1 grid. A contracted axis is cut into L = lcm(R0, R1) panels. Each rank holds a
// window of wX = L/R1 X-panels and one of wY = L/R0 Y-panels, both starting at panel f(i,j) = (i*wY
// + j*wX) mod L. In step t it uses panel f+t of both, then the X front goes to (i, j-1) and the Y
// front to (i-1, j). On a square grid this is Cannon's algorithm (L. E. Cannon, PhD thesis, Montana
// State University, 1969); on one rank it is one block over whole operands.
#pragma once

#include <cstdint>

#include "tessera/mesh/relayout.hpp"

namespace tessera {

struct PanelPlan {
  int rows = 1;  // R0
  int cols = 1;  // R1
  int i = 0;     // own coordinate
  int j = 0;
  int panels = 1;    // L
  int x_window = 1;  // wX
  int y_window = 1;  // wY

  static PanelPlan make(int rows, int cols, int i, int j);
  int start(int row, int col) const { return (row * y_window + col * x_window) % panels; }
  int panel(int step) const { return (start(i, j) + step) % panels; }
  // A front sent in step t is used by the neighbour in step t + window, if there is one.
  bool x_moves(int step) const { return step + x_window < panels; }
  bool y_moves(int step) const { return step + y_window < panels; }
};

// How the matrix tile that a rank owns at rest serves as an operand: rows or columns of it are the
// contracted index. The other index is the one that the operand shares with the result.
enum class Contracted { rows, cols };

// An operand [batch, rows, cols] at rest: the tile (I_i, J_j) of a global rows x cols matrix.
Ownership tiles_at_rest(int grid_rows, int grid_cols, std::int64_t rows, std::int64_t cols);
// Its panels in the skewed position. X shares I_i with the result, Y shares J_j.
Ownership x_panels(int grid_rows, int grid_cols, std::int64_t rows, std::int64_t cols,
                   Contracted contracted);
Ownership y_panels(int grid_rows, int grid_cols, std::int64_t rows, std::int64_t cols,
                   Contracted contracted);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// The program's own business, which knows nothing of Tessera: u_t = u_xx + u_yy on the unit square,
// zero at its border, from u = sin(pi x) sin(pi y), whose solution is exp(-2 pi^2 t) u.
#pragma once

#include <mpi.h>

struct HeatResult {
  double peak = 0;        // the largest value at the end
  double error = 0;       // largest difference from the solution, over its largest value
  double step_error = 0;  // the same from the solution of the difference scheme: rounding only
};

// Collective over `comm`, whose ranks have a strip of rows each and exchange their border rows.
// `points` is the number of inner points along an edge.
HeatResult solve_heat(MPI_Comm comm, int points, int steps);

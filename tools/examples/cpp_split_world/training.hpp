// SPDX-License-Identifier: MIT
// The part that uses Tessera, on a communicator that somebody else made.
#pragma once

#include <mpi.h>

struct TrainingResult {
  double first_loss = 0;
  double last_loss = 0;
};

// Collective over `comm`. A Pairformer layer learns to halve its inputs, by plain gradient descent,
// on the squarest grid of the ranks. The numbers are equal on all ranks.
TrainingResult train(MPI_Comm comm, int steps);

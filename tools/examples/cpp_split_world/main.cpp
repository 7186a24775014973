// SPDX-License-Identifier: MIT
// An MPI program that has a world, an error handler and work of its own, and gives some of its
// ranks to a Tessera model.
#include <tessera/runtime/error.hpp>

#include <cstdio>

#include "heat.hpp"
#include "training.hpp"

namespace {

// The program's own way to deal with errors of MPI. Nothing may come here, or change it.
int errors_seen = 0;
void count_error(MPI_Comm*, int*, ...) {
  ++errors_seen;
}

bool still_ours(MPI_Errhandler handler) {
  MPI_Errhandler now = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now);
  const bool same = now == handler;
  MPI_Errhandler_free(&now);
  return same && errors_seen == 0;
}

constexpr int kTag = 7;

// What the first rank of either part found goes to the other part through the world that both
// share.
double swap_with(int peer, double own) {
  double other = 0;
  MPI_Sendrecv(&own, 1, MPI_DOUBLE, peer, kTag, &other, 1, MPI_DOUBLE, peer, kTag, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  return other;
}

bool work(int rank, int size) {
  const int training_ranks = size >= 5 ? 4 : size >= 3 ? 2 : 1;
  const int first_of_training = size - training_ranks;
  const bool trains = rank >= first_of_training;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, trains ? 1 : 0, rank, &part);

  bool right = false;
  double temperature = 0;
  double loss = 0;
  if (trains) {
    const TrainingResult t = train(part, 20);
    right = t.last_loss < 0.5 * t.first_loss;
    loss = t.last_loss;
    if (rank == first_of_training) {
      temperature = swap_with(0, loss);
      std::printf("training on %d ranks: loss from %.5f to %.5f, beside a peak of %.5f: %s\n",
                  training_ranks, t.first_loss, t.last_loss, temperature, right ? "well" : "WRONG");
    }
  } else {
    const HeatResult h = solve_heat(part, 47, 400);
    right = h.error < 1e-3 && h.step_error < 1e-12;
    temperature = h.peak;
    if (rank == 0) {
      loss = swap_with(first_of_training, temperature);
      std::printf(
          "heat on %d ranks: peak %.5f, off by %.1e and by %.1e, beside a loss of %.5f: %s\n",
          first_of_training, h.peak, h.error, h.step_error, loss, right ? "well" : "WRONG");
    }
  }
  MPI_Comm_free(&part);
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(count_error, &handler);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  if (size < 2) {
    std::fprintf(stderr, "split_world: needs two ranks at least: mpirun -n 6 split_world\n");
    MPI_Finalize();
    return 2;
  }
  int right = 0;
  try {
    right = work(rank, size) && still_ours(handler) ? 1 : 0;
  } catch (const tessera::Error& e) {  // others may wait for this rank
    std::fprintf(stderr, "split_world: rank %d: %s\n", rank, e.what());
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(e.exit_code()));
  }
  int all_right = 0;
  MPI_Allreduce(&right, &all_right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  MPI_Errhandler_free(&handler);
  MPI_Finalize();
  return all_right == 1 ? 0 : 1;
}

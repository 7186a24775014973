// SPDX-License-Identifier: MIT
// MPI for people who write a main(). Nothing else in the library initialises or finalises MPI.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace tessera {

class Communicator;

// Initialises MPI if nobody has, and finalises it in the destructor if it did so and no exception
// is unwinding. Thread level FUNNELED is asked for and suffices. Sets the thread count of the rank
// (runtime/parallel.hpp) from the affinity mask and the number of ranks that share the node.
// Throws InitError if the launcher's variables (OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS ...)
// disagree with the size of MPI_COMM_WORLD: four separate one-rank jobs look like success.
class Environment {
 public:
  Environment(int& argc, char**& argv);
  ~Environment();
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  Communicator world() const;  // a duplicate of MPI_COMM_WORLD, made once

  // Ends the whole job after an error that other ranks may not share; never returns.
  [[noreturn]] static void abort(int exit_code);

  // Ends this process if it is still there after so long, by a thread that makes no MPI call.
  // What MPI may still wait for then, such as a message that will not come, no longer matters.
  static void end_within(std::chrono::seconds grace, int exit_code);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct MpiInfo {
  bool initialized = false;
  std::string library;       // first line of MPI_Get_library_version
  std::string standard;      // "3.1"; empty in a build without MPI
  std::string thread_level;  // "funneled"
  std::string cuda_aware;    // "yes", "no", "unknown": what the library says
};
MpiInfo mpi_info();

}  // namespace tessera

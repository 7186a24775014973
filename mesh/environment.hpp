// SPDX-License-Identifier: MIT
// MPI for people who write a main(). Nothing else in the library initialises or finalises MPI, and
// nothing needs an Environment: a program that owns MPI hands over any communicator of its own,
//   DeviceMesh::create(Communicator::duplicate(&comm), {1, 2, 2})
// and calls MPI_Finalize itself. What it may rely on, with an Environment or without:
//   communicators   Only duplicates are used and freed. No operation concerns ranks outside the
//                   communicator that was handed over; Environment alone asks the whole world.
//   error handlers  are set on the duplicates only: errors of MPI become MpiError.
//   threads         MPI is called by the thread that calls the library; the operations of one mesh
//                   come from one thread at a time. FUNNELED suffices; other threads than the main
//                   one need SERIALIZED. Under SINGLE (MPI_Init) a rank computes with one thread,
//                   and InitError says so if more were asked for. Without Environment the default
//                   thread count is the whole affinity mask: ranks that share it say
//                   set_thread_count().
//   signals         No handler is installed, no signal is blocked.
//   output          None; see runtime/log.hpp.
//   exit            Errors are exceptions; the process is never ended, but by end_within() and
//                   abort(), which programs call.
//   environment     TESSERA_* variables are read (docs/running.md), none is written.
// What belongs to the process and not to an Environment, a mesh or a tensor: the counts of the
// memory ledger and of products, the last operation (mesh/activity.hpp), the timeline, the log
// sink, settings that were set by a function, the choice of CPU kernels, memory pools of devices,
// and meshes that were given up with messages in flight, whose buffers and communicators MPI may
// still use. Nothing else keeps a communicator. Threads end with ~Environment, or by end_threads().
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace tessera {

class Communicator;

// Initialises MPI if nobody has, and finalises it in the destructor if it did so and no exception
// is unwinding. May be made many times in a process, one after the other or at once, but not after
// MPI was finalised (InitError). While it lives, the default thread count (runtime/parallel.hpp) is
// that of the affinity mask, divided among the ranks of the node that share it. Collective over
// MPI_COMM_WORLD. Throws InitError if the launcher's variables (OMPI_COMM_WORLD_SIZE, PMI_SIZE,
// SLURM_NTASKS ...) disagree with the size of MPI_COMM_WORLD: four separate one-rank jobs look like
// success. Throws UsageError on all ranks if TESSERA_THREADS is wrong on one.
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

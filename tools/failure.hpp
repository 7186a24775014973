// SPDX-License-Identifier: MIT
// The end of a run that failed or was told to end. Programs end jobs; the library never does.
#pragma once

#include <exception>

#include "tessera/mesh/communicator.hpp"

namespace tessera::tools {

// Called by a rank whose work threw. The ranks that get here within a short time tell each other
// their exit codes; one of them prints its message for all: the lowest whose error is a cause and
// not the consequence (a time-out) of another's. If all ranks got here, returns its exit code;
// otherwise the others are still at work and will wait for ever: ends the whole job with it.
int agree_on_failure(const Communicator& world, const std::exception& error);

// Makes SIGTERM, which schedulers and launchers send before they kill, write what the ledgers know:
// rank 0 to stderr, and every rank to `tessera.rankR.terminated.txt` in TESSERA_REPORT_DIR if that
// is set; then the process ends with code 143. Called once, before MPI starts and threads are made.
// The thread that waits for the signal makes no MPI call, so a rank that hangs is reported as well.
void report_on_termination();
// From here on the process just ends: its work is done, or has failed and was reported.
void stop_reporting();

// The rank before MPI is there, from the variables of the launcher; 0 if there are none.
int launched_rank();

}  // namespace tessera::tools

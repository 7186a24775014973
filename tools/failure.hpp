// SPDX-License-Identifier: MIT
// The end of a run that failed.
#pragma once

#include <exception>

#include "tessera/mesh/communicator.hpp"

namespace tessera::tools {

// Called by a rank whose subcommand threw. If all ranks get here within a short time, the lowest
// prints its message, counts the others, and all return its exit code; otherwise the others are
// still at work and will wait for ever: prints and ends the whole job.
int agree_on_failure(const Communicator& world, const std::exception& error);

}  // namespace tessera::tools

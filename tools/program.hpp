// SPDX-License-Identifier: MIT
// The program `tessera` as a function, so that a main() of one's own has it for cases of one's own:
//
//   int main(int argc, char** argv) { return tessera::program::run(argc, argv, {my_case()}); }
//
// is then `parity`, `contracts`, `bench` and the rest for that layer beside all built-in ones. Link
// tessera::program.
#pragma once

#include <vector>

#include "tessera/harness/case.hpp"

namespace tessera::program {

// Collective over MPI_COMM_WORLD, once in a process: starts MPI if nobody has, prints, and takes
// SIGTERM, as programs do and the library does not. Returns the exit code (README.md), equal on all
// ranks; 2 if a case has the name of another one.
int run(int argc, char** argv, const std::vector<harness::Case>& cases = {});

}  // namespace tessera::program

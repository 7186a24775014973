// SPDX-License-Identifier: MIT
#include "tessera/program.hpp"

int main(int argc, char** argv) {
  return tessera::program::run(argc, argv);
}

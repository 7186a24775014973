// SPDX-License-Identifier: MIT
// damage_golden IN OUT TENSOR: a copy of a golden file without one tensor.
#include <cstdio>
#include <exception>

#include "tessera/runtime/safetensors.hpp"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    const auto file = tessera::SafetensorsFile::open(argv[1]);
    tessera::NamedTensors kept;
    for (const std::string& name : file.names())
      if (name != argv[3]) kept.emplace_back(name, file.tensor(name));
    tessera::write_safetensors(argv[2], kept, file.metadata());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}

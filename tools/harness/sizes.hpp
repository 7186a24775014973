// SPDX-License-Identifier: MIT
// Sizes of random problems by name.
#pragma once

#include <string>

#include "tessera/harness/case.hpp"

namespace tessera::harness {

// A named size, made divisible by the mesh; numbers above zero are taken as they are.
struct SizeOptions {
  std::string name = "tiny";  // tiny, small, medium
  std::int64_t tokens = 0, channels = 0, batch = 0, msa = 0;
};
Sizes sizes_of(const SizeOptions& options, const MeshShape& mesh);

}  // namespace tessera::harness

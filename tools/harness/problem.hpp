// SPDX-License-Identifier: MIT
// Random problems: parameters and inputs by seed, name and global index, hence the same on every
// mesh.
#pragma once

#include <functional>
#include <vector>

#include "harness/case.hpp"

namespace tessera::harness {

// Everything that a layer is run on.
struct Setup {
  Instance instance;
  std::vector<InputSpec> specs;
  std::vector<DTensor> inputs;
  std::function<DTensor(const DTensor& output)> upstream;
};

// Parameters are at least f32. Masks have zeros inside and one token row without any one.
Setup random_setup(const Case& c, const Problem& problem, const DeviceMesh& mesh, DType dtype,
                   std::uint64_t seed);

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
// Random problems: parameters and inputs by seed, name and global index, hence the same on every
// mesh.
#pragma once

#include <functional>
#include <vector>

#include "tessera/harness/case.hpp"

namespace tessera::harness {

// Everything that a layer is run on.
struct Setup {
  Instance instance;
  std::vector<InputSpec> specs;
  std::vector<DTensor> inputs;
  // The gradient of an output, by its number; undefined if it has none.
  std::function<DTensor(const DTensor& output, std::size_t number)> upstream;
};
// The inputs as leaves of a tape.
std::vector<Var> inputs_on(Tape& tape, const Setup& setup);
// The dtype of an input in a run of `dtype`.
DType dtype_of(const InputSpec& spec, DType dtype);
// Where backward starts: at every output that has a gradient.
std::vector<Tape::Seed> seeds(const Setup& setup, const std::vector<Var>& outputs);

// Parameters are at least f32. Masks have zeros inside and one token row without any one.
Setup random_setup(const Case& c, const Problem& problem, const DeviceMesh& mesh, DType dtype,
                   std::uint64_t seed);

}  // namespace tessera::harness

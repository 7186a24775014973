// SPDX-License-Identifier: MIT
// Cases of the substrate's operations, one function per group. Their names begin with "substrate.".
#pragma once

#include "tessera/harness/case.hpp"

namespace tessera::harness {

std::vector<Case> elementwise_cases();
std::vector<Case> atom_map_cases();
std::vector<Case> gather_cases();
std::vector<Case> reduce_cases();
std::vector<Case> gate_cases();
std::vector<Case> parameter_cases();
std::vector<Case> redistribute_cases();
std::vector<Case> outer_cases();
std::vector<Case> reshape_cases();
std::vector<Case> windows_cases();
std::vector<Case> pack_cases();

// A case of operations without parameters. The shapes of the inputs are made from the sizes.
using Inputs = std::vector<InputSpec>;
Case operation(std::string name, std::string description,
               std::function<Inputs(const Sizes&)> inputs,
               std::function<std::vector<Var>(const std::vector<Var>&)> forward,
               std::vector<std::string> outputs = {"y"});

// Inputs of the standard classes.
InputSpec pair(const Sizes& s, const char* name = "x");    // [B, N, N, C] (S0,S1,S2)
InputSpec single(const Sizes& s, const char* name = "x");  // [B, N, C] (S0,S1,R)

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
// What this build and this machine are.
#pragma once

#include <string>
#include <vector>

namespace tessera {

std::string version();  // "0.2.0"
std::string compiler();
bool built_with_cuda();
std::string cuda_version();  // toolkit of the build, "" without CUDA
// Instruction sets: kernels are compiled for x86-64 levels v2, v3, v4 and chosen when first used.
// TESSERA_ISA=v2|v3|v4 forces one; UsageError if the processor lacks it.
std::string instruction_set();                // the one in use: "x86-64-v3"
std::vector<std::string> instruction_sets();  // built in

}  // namespace tessera

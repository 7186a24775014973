// SPDX-License-Identifier: MIT
// What the cases of layers with a pair stack share.
#pragma once

#include <nlohmann/json.hpp>

#include "tessera/harness/case.hpp"
#include "tessera/layers/trunk/pair_stack.hpp"

namespace tessera::harness {

// Hyperparameters of the pair stack of a layer (but for dropout), and back. Random problems have a
// mild mask: beside 1e9 a row without any key keeps 7 of 16 digits.
nlohmann::json pair_stack_hyperparameters(const Sizes& s);
PairStackOptions pair_stack_options(const nlohmann::json& h, const char* dropout);
// How random problems are run: with dropout.
RunMode training_mode(bool checkpoint = false);

}  // namespace tessera::harness

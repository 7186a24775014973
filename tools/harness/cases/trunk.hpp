// SPDX-License-Identifier: MIT
// Cases of the layers of the trunk.
#pragma once

#include "tessera/harness/case.hpp"

namespace tessera::harness {

std::vector<Case> linear_cases();  // Linear, LayerNorm, sigmoid gate
std::vector<Case> pair_weighted_averaging_cases();
std::vector<Case> transition_cases();
std::vector<Case> triangle_attention_cases();
std::vector<Case> triangle_multiplication_cases();
std::vector<Case> pairformer_cases();
std::vector<Case> msa_cases();
std::vector<Case> outer_product_mean_cases();
std::vector<Case> attention_pair_bias_cases();

}  // namespace tessera::harness

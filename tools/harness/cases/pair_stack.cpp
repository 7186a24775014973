// SPDX-License-Identifier: MIT
#include "tessera/harness/cases/pair_stack.hpp"

namespace tessera::harness {

nlohmann::json pair_stack_hyperparameters(const Sizes& s) {
  const bool small = s.channels % 16 != 0;
  return {{"token_z", s.channels},
          {"pairwise_head_width", small ? 5 : s.channels / 4},
          {"pairwise_num_heads", small ? 3 : 4},
          {"inf", 60.0}};
}

PairStackOptions pair_stack_options(const nlohmann::json& h, const char* dropout) {
  return {.token_z = h.at("token_z"),
          .dropout = h.at(dropout),
          .head_width = h.at("pairwise_head_width"),
          .num_heads = h.at("pairwise_num_heads"),
          .infinity = h.value("inf", PairStackOptions().infinity)};
}

RunMode training_mode(bool checkpoint) {
  return {.training = true, .stream = {5, stream_id("dropout")}, .checkpoint = checkpoint};
}

}  // namespace tessera::harness

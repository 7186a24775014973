// SPDX-License-Identifier: MIT
#include "tessera/mesh/testing.hpp"

#ifdef TESSERA_TEST_HOOKS

#include <array>
#include <string_view>
#include <utility>

#include "tessera/runtime/variables.hpp"

namespace tessera {
namespace {

constexpr std::array<std::pair<std::string_view, Mutation>, 10> kNames{{
    {"none", Mutation::none},
    {"reverse_ring", Mutation::reverse_ring},
    {"drop_skew", Mutation::drop_skew},
    {"drop_last_rotation", Mutation::drop_last_rotation},
    {"skip_parameter_reduction", Mutation::skip_parameter_reduction},
    {"reduce_over_replicate_axis", Mutation::reduce_over_replicate_axis},
    {"corrupt_probe", Mutation::corrupt_probe},
    {"send_too_early", Mutation::send_too_early},
    {"receive_too_early", Mutation::receive_too_early},
    {"read_too_early", Mutation::read_too_early},
}};

Mutation from_environment() {
  const std::string text = text_from_environment("TESSERA_MUTATION");
  if (text.empty()) return Mutation::none;
  std::string expected;
  for (const auto& [name, value] : kNames) {
    if (name == text) return value;
    expected += (expected.empty() ? "" : ", ") + std::string(name);
  }
  refuse_variable("TESSERA_MUTATION", text, expected);
}

Mutation& current() {
  static Mutation value = from_environment();
  return value;
}

}  // namespace

Mutation mutation() {
  return current();
}
void set_mutation(Mutation value) {
  current() = value;
}

namespace {
StepHook step_hook = nullptr;
}
void set_step_hook(StepHook hook) {
  step_hook = hook;
}
void at_step(const CommRecord& step) {
  if (step_hook != nullptr) step_hook(step);
}

}  // namespace tessera

#endif

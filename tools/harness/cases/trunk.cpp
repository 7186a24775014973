// SPDX-License-Identifier: MIT
#include "tessera/harness/cases/trunk.hpp"

#include <fmt/format.h>

#include "tessera/harness/layer_case.hpp"
#include "tessera/layers/substrate/linear.hpp"
#include "tessera/layers/substrate/sigmoid_gate.hpp"
#include "tessera/layers/trunk/transition.hpp"
#include "tessera/layers/trunk/triangle_multiplication.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;
using Inputs = std::vector<InputSpec>;
using Vars = std::vector<Var>;

Inputs one_input(Class c, const Sizes& s) {
  return {activation("x", c, s, s.channels)};
}

Case linear(const char* name, Class c, bool bias) {
  const auto out = [](const Sizes& s) { return s.channels + 3; };
  return case_of<Linear>(
      {.name = name,
       .description = fmt::format("Linear on a {} tensor", name_of(c)),
       .inputs = [c](const Sizes& s) { return one_input(c, s); },
       .hyperparameters =
           [=](const Sizes& s) {
             return json{{"in", s.channels}, {"out", out(s)}, {"bias", bias}};
           },
       .build =
           [](const Build& build, const json& h) {
             return std::make_unique<Linear>(build, h.at("in"), h.at("out"),
                                             h.at("bias").get<bool>());
           },
       .forward = [](const Linear& m, const Vars& in) { return Vars{m.forward(in[0])}; }});
}

Case layer_norm_case(const char* name) {
  return case_of<LayerNorm>(
      {.name = name,
       .description = "LayerNorm on a pair tensor",
       .inputs = [](const Sizes& s) { return one_input(Class::pair, s); },
       .hyperparameters =
           [](const Sizes& s) {
             return json{{"dim", s.channels}};
           },
       .build = [](const Build& build,
                   const json& h) { return std::make_unique<LayerNorm>(build, h.at("dim")); },
       .forward = [](const LayerNorm& m, const Vars& in) { return Vars{m.forward(in[0])}; }});
}

Case sigmoid_gate_case() {
  return case_of<Module>(
      {.name = "sigmoid_gate",
       .description = "x * sigmoid(g) on pair tensors",
       .inputs =
           [](const Sizes& s) {
             return Inputs{activation("x", Class::pair, s, s.channels),
                           activation("g", Class::pair, s, s.channels)};
           },
       .hyperparameters = [](const Sizes&) { return json::object(); },
       .build = [](const Build& build, const json&) { return std::make_unique<Module>(build); },
       .forward = [](const Module&, const Vars& in) { return Vars{sigmoid_gate(in[0], in[1])}; }});
}

Case transition(const char* name, Class c, bool other_width) {
  const auto out = [=](const Sizes& s) { return other_width ? s.channels + 3 : s.channels; };
  return case_of<Transition>(
      {.name = name,
       .description = fmt::format("Transition (SwiGLU) on a {} tensor{}", name_of(c),
                                  other_width ? ", other output width" : ""),
       .has_golden = true,
       .any_class = true,
       .inputs = [c](const Sizes& s) { return one_input(c, s); },
       .hyperparameters =
           [=](const Sizes& s) {
             return json{{"dim", s.channels}, {"hidden", 4 * s.channels}, {"out_dim", out(s)}};
           },
       .build =
           [](const Build& build, const json& h) {
             const std::int64_t dim = h.at("dim");
             return std::make_unique<Transition>(build, dim, h.at("hidden"),
                                                 h.value("out_dim", dim));
           },
       .forward = [](const Transition& m, const Vars& in) { return Vars{m.forward(in[0])}; }});
}

Case triangle_multiplication(const char* name, TriangleDirection direction) {
  return case_of<TriangleMultiplication>(
      {.name = name,
       .description = "Triangle multiplication on pair tensors",
       .has_golden = true,
       .inputs =
           [](const Sizes& s) {
             return Inputs{activation("x", Class::pair, s, s.channels),
                           mask_input("mask", Class::pair, s)};
           },
       .hyperparameters =
           [](const Sizes& s) {
             return json{{"dim", s.channels}};
           },
       .build =
           [direction](const Build& build, const json& h) {
             return std::make_unique<TriangleMultiplication>(build, h.at("dim"), direction);
           },
       .forward = [](const TriangleMultiplication& m,
                     const Vars& in) { return Vars{m.forward(in[0], in[1])}; }});
}

}  // namespace

std::vector<Case> linear_cases() {
  return {
      linear("linear", Class::pair, true),
      linear("linear_single", Class::single, true),
      linear("linear_no_bias", Class::pair, false),
      linear("substrate.linear", Class::pair, true),
      linear("substrate.linear.no_bias", Class::single, false),
      layer_norm_case("layer_norm"),
      layer_norm_case("substrate.layer_norm"),
      sigmoid_gate_case(),
  };
}

std::vector<Case> transition_cases() {
  return {
      transition("transition", Class::pair, false),
      transition("transition_outdim", Class::single, true),
  };
}

std::vector<Case> triangle_multiplication_cases() {
  return {
      triangle_multiplication("triangle_multiplication_outgoing", TriangleDirection::outgoing),
      triangle_multiplication("triangle_multiplication_incoming", TriangleDirection::incoming),
  };
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/triangle_attention.hpp"

#include "tessera/harness/cases/trunk.hpp"
#include "tessera/harness/layer_case.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;

struct Heads {
  std::int64_t count, width;
};
// Four heads that together are as wide as the tile, as in the model; small tiles have odd ones.
Heads heads_of(const Sizes& s) {
  return s.channels % 16 == 0 ? Heads{4, s.channels / 4} : Heads{3, 5};
}

// Random problems have a milder mask than the model: next to 1e9 a row without any key keeps 7 of
// 16 digits, too few for tight bounds and for central differences. Golden files have 1e9;
// tests/layer/test_triangle_attention.cpp looks at it and at more.
constexpr double kInfinity = 60;

Case triangle_attention(const char* name, TriangleNode node) {
  return case_of<TriangleAttention>(
      {.name = name,
       .description = "Triangle attention on pair tensors",
       .has_golden = true,
       .inputs =
           [](const Sizes& s) {
             return std::vector<InputSpec>{activation("x", Class::pair, s, s.channels),
                                           mask_input("mask", Class::pair, s)};
           },
       .hyperparameters =
           [](const Sizes& s) {
             return json{{"c_in", s.channels},
                         {"c_hidden", heads_of(s).width},
                         {"no_heads", heads_of(s).count},
                         {"inf", kInfinity}};
           },
       .build =
           [node](const Build& build, const json& h) {
             return std::make_unique<TriangleAttention>(build, h.at("c_in"), h.at("c_hidden"),
                                                        h.at("no_heads"), node,
                                                        h.value("inf", 1e9));
           },
       .forward =
           [](const TriangleAttention& m, const std::vector<Var>& in) {
             return std::vector<Var>{m.forward(in[0], in[1])};
           }});
}

}  // namespace

std::vector<Case> triangle_attention_cases() {
  return {
      triangle_attention("triangle_attention_starting_node", TriangleNode::starting),
      triangle_attention("triangle_attention_ending_node", TriangleNode::ending),
  };
}

}  // namespace tessera::harness

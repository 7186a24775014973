// SPDX-License-Identifier: MIT
#include "harness/case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/cases/losses.hpp"
#include "harness/cases/operations.hpp"
#include "tessera/layers/substrate/linear.hpp"
#include "tessera/layers/substrate/sigmoid_gate.hpp"
#include "tessera/layers/trunk/transition.hpp"
#include "tessera/layers/trunk/triangle_multiplication.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;

// Two classes of activations that the same layer may be given.
enum class Class { pair, single };

Shape shape_of(Class c, const Sizes& s) {
  if (c == Class::pair) return {s.batch, s.tokens, s.tokens, s.channels};
  return {s.batch, s.tokens, s.channels};
}

Placements placements_of(Class c) {
  return c == Class::pair ? pair_placements() : single_placements();
}

std::int64_t positions(const Shape& shape) {
  return numel(shape) / shape.back();
}

InputSpec input(const char* name, Class c, InputKind kind = InputKind::values) {
  return {name, {}, placements_of(c), kind, kind == InputKind::values};
}

// A problem whose inputs all have the shape of x; masks have it without channels.
Problem problem_of(const std::vector<InputSpec>& inputs, const Shape& x, json hyperparameters,
                   double forward_flops) {
  Problem problem{std::make_shared<json>(std::move(hyperparameters)), inputs, forward_flops};
  for (InputSpec& spec : problem.inputs) {
    spec.shape = x;
    if (spec.kind == InputKind::mask) spec.shape.pop_back();
  }
  return problem;
}

template <class M>
Instance instance_of(std::unique_ptr<M> module,
                     std::function<Var(const M&, const std::vector<Var>&)> forward) {
  const M* layer = module.get();
  return {std::move(module), [layer, forward](const std::vector<Var>& in) {
            return std::vector<Var>{forward(*layer, in)};
          }};
}

// Module without parameters, for plain functions.
class NoParameters : public Module {
 public:
  using Module::Module;
};

Case linear(const char* name, Class c, bool bias) {
  Case k;
  k.name = name;
  k.description = fmt::format("Linear on a {} tensor", c == Class::pair ? "pair" : "single");
  k.inputs = {input("x", c)};
  k.problem = [=, inputs = k.inputs](const Sizes& s) {
    const Shape x = shape_of(c, s);
    const std::int64_t out = s.channels + 3;
    return problem_of(inputs, x, {{"in", s.channels}, {"out", out}, {"bias", bias}},
                      2.0 * static_cast<double>(positions(x) * s.channels * out));
  };
  k.build = [](const Build& build, const json& h) {
    return instance_of<Linear>(
        std::make_unique<Linear>(build, h.at("in"), h.at("out"), h.at("bias").get<bool>()),
        [](const Linear& m, const std::vector<Var>& in) { return m.forward(in[0]); });
  };
  return k;
}

Case layer_norm_case(const char* name) {
  Case k;
  k.name = name;
  k.description = "LayerNorm on a pair tensor";
  k.inputs = {input("x", Class::pair)};
  k.problem = [inputs = k.inputs](const Sizes& s) {
    return problem_of(inputs, shape_of(Class::pair, s), {{"dim", s.channels}}, 0);
  };
  k.build = [](const Build& build, const json& h) {
    return instance_of<LayerNorm>(
        std::make_unique<LayerNorm>(build, h.at("dim")),
        [](const LayerNorm& m, const std::vector<Var>& in) { return m.forward(in[0]); });
  };
  return k;
}

Case sigmoid_gate_case() {
  Case k;
  k.name = "sigmoid_gate";
  k.description = "x * sigmoid(g) on pair tensors";
  k.inputs = {input("x", Class::pair), input("g", Class::pair)};
  k.problem = [inputs = k.inputs](const Sizes& s) {
    return problem_of(inputs, shape_of(Class::pair, s), json::object(), 0);
  };
  k.build = [](const Build& build, const json&) {
    return instance_of<NoParameters>(
        std::make_unique<NoParameters>(build),
        [](const NoParameters&, const std::vector<Var>& in) { return sigmoid_gate(in[0], in[1]); });
  };
  return k;
}

Case transition(const char* name, Class c, bool other_width) {
  Case k;
  k.name = name;
  k.description =
      fmt::format("Transition (SwiGLU) on a {} tensor{}", c == Class::pair ? "pair" : "single",
                  other_width ? ", other output width" : "");
  k.has_golden = true;
  k.any_class = true;
  k.inputs = {input("x", c)};
  k.problem = [=, inputs = k.inputs](const Sizes& s) {
    const Shape x = shape_of(c, s);
    const std::int64_t hidden = 4 * s.channels;
    const std::int64_t out = other_width ? s.channels + 3 : s.channels;
    return problem_of(inputs, x, {{"dim", s.channels}, {"hidden", hidden}, {"out_dim", out}},
                      2.0 * static_cast<double>(positions(x) * hidden * (2 * s.channels + out)));
  };
  k.build = [](const Build& build, const json& h) {
    const std::int64_t dim = h.at("dim");
    return instance_of<Transition>(
        std::make_unique<Transition>(build, dim, h.at("hidden"), h.value("out_dim", dim)),
        [](const Transition& m, const std::vector<Var>& in) { return m.forward(in[0]); });
  };
  return k;
}

Case triangle_multiplication(const char* name, TriangleDirection direction) {
  Case k;
  k.name = name;
  k.description = "Triangle multiplication on pair tensors";
  k.has_golden = true;
  k.inputs = {input("x", Class::pair), input("mask", Class::pair, InputKind::mask)};
  k.problem = [inputs = k.inputs](const Sizes& s) {
    const Shape x = shape_of(Class::pair, s);
    const auto d = static_cast<double>(s.channels);
    const auto n2 = static_cast<double>(positions(x));
    // p_in, g_in: 4 D^2; p_out, g_out: 2 D^2; contraction: N D, each per position and pair of
    // operations.
    return problem_of(inputs, x, {{"dim", s.channels}},
                      2 * n2 * (6 * d * d + static_cast<double>(s.tokens) * d));
  };
  k.build = [direction](const Build& build, const json& h) {
    return instance_of<TriangleMultiplication>(
        std::make_unique<TriangleMultiplication>(build, h.at("dim"), direction),
        [](const TriangleMultiplication& m, const std::vector<Var>& in) {
          return m.forward(in[0], in[1]);
        });
  };
  return k;
}

std::vector<Case> layer_cases() {
  return {
      linear("linear", Class::pair, true),
      linear("linear_single", Class::single, true),
      linear("linear_no_bias", Class::pair, false),
      linear("substrate.linear", Class::pair, true),
      linear("substrate.linear.no_bias", Class::single, false),
      layer_norm_case("layer_norm"),
      layer_norm_case("substrate.layer_norm"),
      sigmoid_gate_case(),
      transition("transition", Class::pair, false),
      transition("transition_outdim", Class::single, true),
      triangle_multiplication("triangle_multiplication_outgoing", TriangleDirection::outgoing),
      triangle_multiplication("triangle_multiplication_incoming", TriangleDirection::incoming),
  };
}

// Edit distance, to suggest names.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string nearest(const std::string& name) {
  const auto& cases = all_cases();
  return std::min_element(cases.begin(), cases.end(),
                          [&](const Case& a, const Case& b) {
                            return distance(a.name, name) < distance(b.name, name);
                          })
      ->name;
}

}  // namespace

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all = layer_cases();
    for (const auto& group : {
             elementwise_cases,
             gate_cases,
             atom_map_cases,
             gather_cases,
             loss_cases,
             pack_cases,
             reduce_cases,
             parameter_cases,
             redistribute_cases,
             outer_cases,
             reshape_cases,
             windows_cases,
         }) {
      std::vector<Case> more = group();
      std::move(more.begin(), more.end(), std::back_inserter(all));
    }
    return all;
  }();
  return cases;
}

Placements golden_placements(const Case& c, const InputSpec& spec, int ndim) {
  if (!c.any_class) return spec.placements;
  if (ndim >= 4) return pair_placements();
  if (ndim == 3) return single_placements();
  return {Shard{0}, Replicate{}, Replicate{}};
}

const Case* find_case(const std::string& name) {
  for (const Case& c : all_cases())
    if (c.name == name) return &c;
  return nullptr;
}

std::vector<Case> select_cases(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return all_cases();
  std::vector<bool> chosen(all_cases().size(), false);
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (std::size_t k = 0; k < all_cases().size(); ++k)
      if (fnmatch(pattern.c_str(), all_cases()[k].name.c_str(), 0) == 0) chosen[k] = matched = true;
    if (!matched)
      throw UsageError(
          {.problem = fmt::format("no case matches '{}'", pattern),
           .operation = "--case",
           .hint = fmt::format("did you mean '{}'? --list shows all", nearest(pattern))});
  }
  std::vector<Case> selected;
  for (std::size_t k = 0; k < chosen.size(); ++k)
    if (chosen[k]) selected.push_back(all_cases()[k]);
  return selected;
}

}  // namespace tessera::harness

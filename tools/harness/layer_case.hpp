// SPDX-License-Identifier: MIT
// What cases of layers are made of: inputs of the standard classes, and one description of a layer
// from which its case follows.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/harness/case.hpp"

namespace tessera::harness {

// Classes of activations: [B, N, N, C], [B, S, N, C] (S0,S1,S2), [B, N, C] (S0,S1,R).
enum class Class { pair, msa, single };
const char* name_of(Class c);
Placements placements_of(Class c);
// With no channels at all for `channels` 0, as masks have them.
Shape shape_of(Class c, const Sizes& s, std::int64_t channels);
// Positions of an activation, i.e. of its mask.
std::int64_t positions(Class c, const Sizes& s);

InputSpec activation(const char* name, Class c, const Sizes& s, std::int64_t channels);
InputSpec mask_input(const char* name, Class c, const Sizes& s);

// Channels of single tensors beside pair tensors of s.channels, a multiple of heads_of_single().
std::int64_t single_channels(const Sizes& s);
std::int64_t heads_of_single(const Sizes& s);

// Channels of MSA tensors: half of s.channels, as in the model; small tiles have odd ones.
std::int64_t msa_channels(const Sizes& s);

// A layer of class M.
template <class M>
struct Layer {
  std::string name, description;
  std::vector<std::string> outputs{"y"};
  bool has_golden = false;
  bool any_class = false;
  std::vector<std::string> zero_gradients = {};
  bool stack = false;
  // In the order of `forward`; names and placements do not depend on the sizes.
  std::function<std::vector<InputSpec>(const Sizes&)> inputs;
  std::function<nlohmann::json(const Sizes&)> hyperparameters;
  std::function<std::unique_ptr<M>(const Build&, const nlohmann::json& hyperparameters)> build;
  std::function<std::vector<Var>(const M&, const std::vector<Var>&)> forward;
};

template <class M>
Case case_of(const Layer<M>& layer) {
  Case k;
  k.name = layer.name;
  k.description = layer.description;
  k.outputs = layer.outputs;
  k.has_golden = layer.has_golden;
  k.any_class = layer.any_class;
  k.zero_gradients = layer.zero_gradients;
  k.stack = layer.stack;
  k.inputs = layer.inputs({});
  k.problem = [layer](const Sizes& s) {
    return Problem{std::make_shared<nlohmann::json>(layer.hyperparameters(s)), layer.inputs(s)};
  };
  k.build = [layer](const Build& build, const nlohmann::json& hyperparameters) {
    std::unique_ptr<M> module = layer.build(build, hyperparameters);
    const M& m = *module;
    return Instance{std::move(module), [&m, forward = layer.forward](const std::vector<Var>& in) {
                      return forward(m, in);
                    }};
  };
  return k;
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include <nlohmann/json.hpp>

#include "tessera/harness/cases/operations.hpp"
#include "tessera/layers/substrate/embedding.hpp"
#include "tessera/layers/substrate/layer_norm.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;

constexpr std::int64_t kRows = 5;  // of the table

// A module M of one operand. `make` knows the size of the last dim from the hyperparameters.
template <class M>
Case layer(std::string name, std::string description, std::function<Inputs(const Sizes&)> inputs,
           std::function<std::unique_ptr<M>(const Build&, std::int64_t)> make) {
  Case k = operation(std::move(name), std::move(description), inputs, {});
  k.problem = [inputs](const Sizes& s) {
    return Problem{std::make_shared<json>(json{{"channels", s.channels}}), inputs(s)};
  };
  k.build = [make](const Build& build, const json& h) {
    std::unique_ptr<M> module = make(build, h.at("channels").get<std::int64_t>());
    const M* m = module.get();
    return Instance{std::move(module), [m](const std::vector<Var>& in) {
                      return std::vector<Var>{m->forward(in[0])};
                    }};
  };
  return k;
}

Inputs indices(const Sizes& s) {
  return {{.name = "idx",
           .shape = {s.batch, s.tokens, s.tokens},
           .placements = pair_placements(),
           .kind = InputKind::index,
           .differentiable = false,
           .low = 0,
           .high = static_cast<double>(kRows)}};
}

Inputs one_pair(const Sizes& s) {
  return {pair(s)};
}
// [B, N, 3, C]
Inputs two_features(const Sizes& s) {
  return {{.name = "x",
           .shape = {s.batch, s.tokens, 3, s.channels},
           .placements = single_placements()}};
}

std::unique_ptr<LayerNorm> norm(const Build& build, Shape dims, Affine affine) {
  return std::make_unique<LayerNorm>(build, std::move(dims), affine);
}

}  // namespace

std::vector<Case> parameter_cases() {
  return {
      layer<Embedding>("embedding", "Rows of a table by the indices of pairs", indices,
                       [](const Build& build, std::int64_t channels) {
                         return std::make_unique<Embedding>(build, kRows, channels);
                       }),
      operation("shardwise_one_hot", "Indices of pairs as indicators", indices,
                [](const std::vector<Var>& in) {
                  return std::vector<Var>{shardwise_one_hot(in[0], kRows)};
                }),
      layer<LayerNorm>("layer_norm.two_dims", "LayerNorm over the last two dims", two_features,
                       [](const Build& build, std::int64_t channels) {
                         return norm(build, {3, channels}, Affine::weight_and_bias);
                       }),
      layer<LayerNorm>("layer_norm.no_bias", "LayerNorm with a weight alone", one_pair,
                       [](const Build& build, std::int64_t channels) {
                         return norm(build, {channels}, Affine::weight);
                       }),
      layer<LayerNorm>("layer_norm.plain", "LayerNorm without parameters", one_pair,
                       [](const Build& build, std::int64_t channels) {
                         return norm(build, {channels}, Affine::none);
                       }),
  };
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/outer_product_mean.hpp"

#include "tessera/harness/cases/trunk.hpp"
#include "tessera/harness/layer_case.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;
using Inputs = std::vector<InputSpec>;
using Vars = std::vector<Var>;

// With 128 channels of pairs: those of the trunk, 32.
std::int64_t hidden_channels(const Sizes& s) {
  return std::max<std::int64_t>(3, s.channels / 4);
}

}  // namespace

std::vector<Case> outer_product_mean_cases() {
  return {case_of<OuterProductMean>(
      {.name = "outer_product_mean",
       .description = "Outer product mean, from MSA to pairs",
       .outputs = {"z"},
       .has_golden = true,
       .inputs =
           [](const Sizes& s) {
             return Inputs{activation("m", Class::msa, s, msa_channels(s)),
                           mask_input("mask", Class::msa, s)};
           },
       .hyperparameters =
           [](const Sizes& s) {
             return json{{"c_in", msa_channels(s)},
                         {"c_hidden", hidden_channels(s)},
                         {"c_out", s.channels}};
           },
       .build =
           [](const Build& build, const json& h) {
             return std::make_unique<OuterProductMean>(build, h.at("c_in"), h.at("c_hidden"),
                                                       h.at("c_out"));
           },
       .forward = [](const OuterProductMean& layer,
                     const Vars& in) { return Vars{layer.forward(in[0], in[1])}; }})};
}

}  // namespace tessera::harness

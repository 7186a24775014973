// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/msa.hpp"

#include "tessera/harness/cases/pair_stack.hpp"
#include "tessera/harness/cases/trunk.hpp"
#include "tessera/harness/layer_case.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;
using Inputs = std::vector<InputSpec>;
using Vars = std::vector<Var>;

constexpr const char* kZero = "pair_weighted_averaging.norm_z.bias";

json hyperparameters(const Sizes& s) {
  json h = pair_stack_hyperparameters(s);
  h["msa_s"] = msa_channels(s);
  h["msa_dropout"] = 0.15;
  h["z_dropout"] = 0.25;
  return h;
}

json module_hyperparameters(const Sizes& s) {
  json h = hyperparameters(s);
  h["token_s"] = single_channels(s);
  h["msa_blocks"] = 2;
  h["use_paired_feature"] = true;
  return h;
}

MsaOptions options(const json& h) {
  const PairStackOptions pairs = pair_stack_options(h, "z_dropout");
  return {.msa_s = h.at("msa_s"),
          .msa_dropout = h.at("msa_dropout"),
          .average_infinity = h.contains("inf") ? pairs.infinity : MsaOptions().average_infinity,
          .pairs = pairs};
}

Case layer() {
  return case_of<MsaLayer>(
      {.name = "msa_layer",
       .description = "MSA layer",
       .outputs = {"z", "m"},
       .has_golden = true,
       .zero_gradients = {kZero},
       .stack = true,
       .inputs =
           [](const Sizes& s) {
             return Inputs{activation("z", Class::pair, s, s.channels),
                           activation("m", Class::msa, s, msa_channels(s)),
                           mask_input("token_mask", Class::pair, s),
                           mask_input("msa_mask", Class::msa, s)};
           },
       .hyperparameters = hyperparameters,
       .build = [](const Build& build,
                   const json& h) { return std::make_unique<MsaLayer>(build, options(h)); },
       .forward =
           [](const MsaLayer& m, const Vars& in) {
             const MsaAndPair out = m.forward({in[1], in[0]}, in[2], in[3], training_mode());
             return Vars{out.z, out.m};
           }});
}

InputSpec feature(const char* name, const Sizes& s) {
  InputSpec spec = activation(name, Class::msa, s, 0);
  spec.differentiable = false;
  return spec;
}

Inputs module_inputs(const Sizes& s) {
  InputSpec msa = feature("feats.msa", s);
  msa.kind = InputKind::index;
  msa.low = 0;
  msa.high = 33;
  return {activation("z", Class::pair, s, s.channels),
          activation("emb", Class::single, s, single_channels(s)),
          msa,
          feature("feats.has_deletion", s),
          feature("feats.deletion_value", s),
          feature("feats.msa_paired", s),
          mask_input("feats.msa_mask", Class::msa, s),
          mask_input("feats.token_pad_mask", Class::single, s)};
}

Case module(const char* name, const char* description, bool again) {
  return case_of<MsaModule>(
      {.name = name,
       .description = description,
       .outputs = {"z"},
       .has_golden = !again,
       .zero_gradients = {std::string("layers.0.") + kZero, std::string("layers.1.") + kZero},
       .stack = true,
       .inputs = module_inputs,
       .hyperparameters = module_hyperparameters,
       .build =
           [](const Build& build, const json& h) {
             return std::make_unique<MsaModule>(
                 build, MsaModuleOptions{.token_s = h.at("token_s"),
                                         .blocks = h.at("msa_blocks"),
                                         .use_paired_feature = h.at("use_paired_feature"),
                                         .layer = options(h)});
           },
       .forward =
           [again](const MsaModule& m, const Vars& in) {
             const MsaInputs features{.msa = in[2],
                                      .has_deletion = in[3],
                                      .deletion_value = in[4],
                                      .msa_paired = in[5],
                                      .msa_mask = in[6],
                                      .token_pad_mask = in[7]};
             return Vars{m.forward(in[0], in[1], features, training_mode(again))};
           }});
}

}  // namespace

std::vector<Case> msa_cases() {
  return {
      layer(),
      module("msa_module", "Features of an MSA and two MSA layers", false),
      module("msa_module_checkpoint", "Two MSA layers, run again in backward", true),
  };
}

}  // namespace tessera::harness

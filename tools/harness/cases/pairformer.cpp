// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/pairformer.hpp"

#include "tessera/harness/cases/pair_stack.hpp"
#include "tessera/harness/cases/trunk.hpp"
#include "tessera/harness/layer_case.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;
using Inputs = std::vector<InputSpec>;
using Vars = std::vector<Var>;

constexpr const char* kZero = "attention.proj_z.0.bias";

json pair_hyperparameters(const Sizes& s) {
  json h = pair_stack_hyperparameters(s);
  h["dropout"] = 0.25;
  return h;
}

json hyperparameters(const Sizes& s) {
  json h = pair_hyperparameters(s);
  h["token_s"] = single_channels(s);
  h["num_heads"] = heads_of_single(s);
  h["post_layer_norm"] = true;
  h["v2"] = true;
  return h;
}

json two_blocks(json h) {
  h["num_blocks"] = 2;
  return h;
}

PairformerOptions options(const json& h) {
  if (!h.value("v2", true))
    throw UnsupportedError({.problem = "attention with pair bias is of version 2",
                            .operation = "hyperparameters",
                            .found = "v2 = false",
                            .expected = "v2 = true"});
  return {.token_s = h.at("token_s"),
          .num_heads = h.at("num_heads"),
          .post_layer_norm = h.value("post_layer_norm", false),
          .pairs = pair_stack_options(h, "dropout")};
}

Inputs pair_inputs(const Sizes& s) {
  return {activation("z", Class::pair, s, s.channels), mask_input("pair_mask", Class::pair, s)};
}

Inputs inputs(const Sizes& s) {
  return {activation("s", Class::single, s, single_channels(s)),
          activation("z", Class::pair, s, s.channels), mask_input("mask", Class::single, s),
          mask_input("pair_mask", Class::pair, s)};
}

template <class M>
Vars run(const M& module, const Vars& in, const RunMode& mode) {
  const SingleAndPair out = module.forward({in[0], in[1]}, in[2], in[3], mode);
  return {out.s, out.z};
}

Case layer() {
  return case_of<PairformerLayer>(
      {.name = "pairformer_layer",
       .description = "Pairformer layer",
       .outputs = {"s", "z"},
       .has_golden = true,
       .zero_gradients = {kZero},
       .stack = true,
       .inputs = inputs,
       .hyperparameters = hyperparameters,
       .build = [](const Build& build,
                   const json& h) { return std::make_unique<PairformerLayer>(build, options(h)); },
       .forward = [](const PairformerLayer& m,
                     const Vars& in) { return run(m, in, training_mode()); }});
}

Case module(const char* name, const char* description, bool again) {
  return case_of<PairformerModule>(
      {.name = name,
       .description = description,
       .outputs = {"s", "z"},
       .has_golden = !again,
       .zero_gradients = {std::string("layers.0.") + kZero, std::string("layers.1.") + kZero},
       .stack = true,
       .inputs = inputs,
       .hyperparameters = [](const Sizes& s) { return two_blocks(hyperparameters(s)); },
       .build =
           [](const Build& build, const json& h) {
             return std::make_unique<PairformerModule>(build, options(h), h.at("num_blocks"));
           },
       .forward = [again](const PairformerModule& m,
                          const Vars& in) { return run(m, in, training_mode(again)); }});
}

Case noseq_layer() {
  return case_of<PairformerNoSeqLayer>(
      {.name = "pairformer_noseq_layer",
       .description = "Pairformer layer without a sequence",
       .outputs = {"z"},
       .has_golden = true,
       .stack = true,
       .inputs = pair_inputs,
       .hyperparameters = pair_hyperparameters,
       .build =
           [](const Build& build, const json& h) {
             return std::make_unique<PairformerNoSeqLayer>(build, pair_stack_options(h, "dropout"));
           },
       .forward = [](const PairformerNoSeqLayer& m,
                     const Vars& in) { return Vars{m.forward(in[0], in[1], training_mode())}; }});
}

Case noseq_module() {
  return case_of<PairformerNoSeqModule>(
      {.name = "pairformer_noseq_module",
       .description = "Two Pairformer layers without a sequence",
       .outputs = {"z"},
       .has_golden = true,
       .stack = true,
       .inputs = pair_inputs,
       .hyperparameters = [](const Sizes& s) { return two_blocks(pair_hyperparameters(s)); },
       .build =
           [](const Build& build, const json& h) {
             return std::make_unique<PairformerNoSeqModule>(build, pair_stack_options(h, "dropout"),
                                                            h.at("num_blocks"));
           },
       .forward = [](const PairformerNoSeqModule& m,
                     const Vars& in) { return Vars{m.forward(in[0], in[1], training_mode())}; }});
}

}  // namespace

std::vector<Case> pairformer_cases() {
  return {
      layer(),
      module("pairformer_module", "Two Pairformer layers", false),
      module("pairformer_module_checkpoint", "Two Pairformer layers, run again in backward", true),
      noseq_layer(),
      noseq_module(),
  };
}

}  // namespace tessera::harness

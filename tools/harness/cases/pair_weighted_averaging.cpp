// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/pair_weighted_averaging.hpp"

#include "tessera/harness/cases/trunk.hpp"
#include "tessera/harness/layer_case.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;
using Inputs = std::vector<InputSpec>;
using Vars = std::vector<Var>;

constexpr double kInf = 1e6;

// With 128 channels of pairs: 8 heads of 32, as in the trunk.
struct Widths {
  std::int64_t msa, head, heads;
};
Widths widths(const Sizes& s) {
  const bool full = s.channels >= 16;
  return {msa_channels(s), full ? 32 : 4, full ? 8 : 3};
}

}  // namespace

std::vector<Case> pair_weighted_averaging_cases() {
  return {case_of<PairWeightedAveraging>(
      {.name = "pair_weighted_averaging",
       .description = "Pair-weighted averaging of an MSA",
       .outputs = {"o"},
       .has_golden = true,
       .zero_gradients = {"norm_z.bias"},
       .inputs =
           [](const Sizes& s) {
             return Inputs{activation("m", Class::msa, s, widths(s).msa),
                           activation("z", Class::pair, s, s.channels),
                           mask_input("mask", Class::pair, s)};
           },
       .hyperparameters =
           [](const Sizes& s) {
             const Widths w = widths(s);
             return json{{"c_m", w.msa},
                         {"c_z", s.channels},
                         {"c_h", w.head},
                         {"num_heads", w.heads},
                         {"inf", kInf}};
           },
       .build =
           [](const Build& build, const json& h) {
             return std::make_unique<PairWeightedAveraging>(build, h.at("c_m"), h.at("c_z"),
                                                            h.at("c_h"), h.at("num_heads"),
                                                            h.value("inf", kInf));
           },
       .forward = [](const PairWeightedAveraging& layer,
                     const Vars& in) { return Vars{layer.forward(in[0], in[1], in[2])}; }})};
}

}  // namespace tessera::harness

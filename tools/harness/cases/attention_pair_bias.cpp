// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/attention_pair_bias.hpp"

#include <fmt/format.h>

#include "tessera/harness/cases/trunk.hpp"
#include "tessera/harness/layer_case.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;
using Vars = std::vector<Var>;
using Inputs = std::vector<InputSpec>;

constexpr std::int64_t kQueries = 3, kKeys = 5;  // of a window

// What distinguishes the cases.
struct Variant {
  const char* name;
  const char* description;
  PairBiasVersion version = PairBiasVersion::v2;
  std::int64_t samples = 1;
  bool other_keys = false;        // k_in is not s
  bool compute_pair_bias = true;  // else z is the bias
  bool masks_pairs = false;
  bool windows = false;
  bool has_golden = true;
};

InputSpec of_samples(InputSpec spec, std::int64_t samples) {
  spec.shape[0] *= samples;
  return spec;
}

InputSpec windows_of(const char* name, Shape shape, InputKind kind = InputKind::values) {
  return {.name = name,
          .shape = std::move(shape),
          .placements = single_placements(),
          .kind = kind,
          .differentiable = kind == InputKind::values};
}

// s, z, mask; then what else there is.
Inputs inputs_of(const Variant& v, const Sizes& s) {
  const std::int64_t c_s = single_channels(s);
  const std::int64_t c_z = v.compute_pair_bias ? s.channels : heads_of_single(s);
  const std::int64_t samples = s.batch * v.samples, windows = s.tokens;
  if (v.windows)
    return {windows_of("s", {samples, windows, kQueries, c_s}),
            windows_of("z", {s.batch, windows, kQueries, kKeys, c_z}),
            windows_of("mask", {s.batch, windows, kKeys}, InputKind::mask),
            windows_of("k_in", {samples, windows, kKeys, c_s})};
  Inputs all{of_samples(activation("s", Class::single, s, c_s), v.samples),
             activation("z", Class::pair, s, c_z),
             of_samples(mask_input("mask", Class::single, s), v.samples)};
  if (v.other_keys) all.push_back(of_samples(activation("k_in", Class::single, s, c_s), v.samples));
  if (v.masks_pairs) all.push_back(mask_input("pair_mask", Class::pair, s));
  return all;
}

Vars forward(const Variant& v, const AttentionPairBias& m, const Vars& in) {
  AttentionPairBias::Inputs inputs{.s = in[0], .z = in[1], .mask = in[2]};
  if (v.version == PairBiasVersion::v2) inputs.k_in = v.other_keys ? in[3] : in[0];
  if (v.masks_pairs) inputs.pair_mask = in.back();
  return {v.windows ? m.forward_windows(inputs) : m.forward(inputs)};
}

Case case_of(const Variant& v) {
  Layer<AttentionPairBias> layer;
  layer.name = v.name;
  layer.description = fmt::format("Attention with pair bias, {}", v.description);
  layer.outputs = {"o"};
  layer.has_golden = v.has_golden;
  if (v.compute_pair_bias) layer.zero_gradients = {"proj_z.0.bias"};
  layer.inputs = [v](const Sizes& s) { return inputs_of(v, s); };
  layer.hyperparameters = [v](const Sizes& s) {
    return json{{"c_s", single_channels(s)},
                {"num_heads", heads_of_single(s)},
                {"c_z", s.channels},
                {"compute_pair_bias", v.compute_pair_bias},
                {"inf", AttentionPairBiasOptions{}.inf}};
  };
  layer.build = [v](const Build& build, const json& h) {
    const bool computes = h.value("compute_pair_bias", true);
    return std::make_unique<AttentionPairBias>(
        build, AttentionPairBiasOptions{.c_s = h.at("c_s"),
                                        .num_heads = h.at("num_heads"),
                                        .c_z = computes ? h.at("c_z").get<std::int64_t>() : 0,
                                        .version = v.version,
                                        .compute_pair_bias = computes,
                                        .inf = h.value("inf", AttentionPairBiasOptions{}.inf)});
  };
  layer.forward = [v](const AttentionPairBias& m, const Vars& in) { return forward(v, m, in); };
  return case_of(layer);
}

}  // namespace

std::vector<Case> attention_pair_bias_cases() {
  constexpr PairBiasVersion v1 = PairBiasVersion::v1;
  std::vector<Case> all;
  for (const Variant& v : std::vector<Variant>{
           {.name = "attention_pair_bias_v1_m1", .description = "version 1", .version = v1},
           {.name = "attention_pair_bias_v1_m2",
           .description = "version 1, two samples",
           .version = v1,
           .samples = 2},
           {.name = "attention_pair_bias_v2_m1", .description = "keys from s"},
           {.name = "attention_pair_bias_v2_m2",
           .description = "keys from s, two samples",
           .samples = 2},
           {.name = "attention_pair_bias_v2_kin", .description = "other keys", .other_keys = true},
           {.name = "attention_pair_bias_v2_nobias_m2",
           .description = "with the bias itself, two samples",
           .samples = 2,
           .compute_pair_bias = false},
           {.name = "attention_pair_bias_pair_mask",
           .description = "with a mask of pairs, three samples, other keys",
           .samples = 3,
           .other_keys = true,
           .masks_pairs = true,
           .has_golden = false},
           {.name = "attention_pair_bias_window",
           .description = "in windows, three samples",
           .samples = 3,
           .other_keys = true,
           .windows = true,
           .has_golden = false}})
    all.push_back(case_of(v));
  return all;
}

}  // namespace tessera::harness

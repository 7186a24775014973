// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/pairformer.hpp"

#include <string>
#include <utility>

#include "tessera/autodiff/checkpoint.hpp"
#include "tessera/layers/substrate/elementwise.hpp"

namespace tessera {

PairformerLayer::PairformerLayer(const Build& build, const PairformerOptions& o)
    : Module(build),
      pre_norm_s_(build, o.token_s),
      attention_(build, {.c_s = o.token_s, .num_heads = o.num_heads, .c_z = o.pairs.token_z}),
      pairs_(build, o.pairs),
      transition_s_(build, o.token_s, 4 * o.token_s) {
  add_child("pre_norm_s", pre_norm_s_);
  add_child("attention", attention_);
  add_child("tri_mul_out", pairs_.tri_mul_out);
  add_child("tri_mul_in", pairs_.tri_mul_in);
  add_child("tri_att_start", pairs_.tri_att_start);
  add_child("tri_att_end", pairs_.tri_att_end);
  add_child("transition_s", transition_s_);
  add_child("transition_z", pairs_.transition_z);
  if (!o.post_layer_norm) return;
  s_post_norm_ = std::make_unique<LayerNorm>(build, o.token_s);
  add_child("s_post_norm", *s_post_norm_);
}

SingleAndPair PairformerLayer::run(SingleAndPair x, const Var& mask, const Var& pair_mask,
                                   const RunMode& mode) const {
  const Var z = pairs_.forward(std::move(x.z), pair_mask, mode);
  const Var normed = pre_norm_s_.forward(x.s);
  Var s = add(x.s, attention_.forward({.s = normed, .z = z, .mask = mask, .k_in = normed}));
  s = add(s, transition_s_.forward(s));
  return {s_post_norm_ ? s_post_norm_->forward(s) : s, z};
}

SingleAndPair PairformerLayer::forward(SingleAndPair x, const Var& mask, const Var& pair_mask,
                                       const RunMode& mode) const {
  const Scope scope(name());
  if (!mode.checkpoint) return run(std::move(x), mask, pair_mask, mode);
  const std::vector<Var> y =
      checkpoint({{"s", x.s}, {"z", x.z}, {"mask", mask}, {"pair_mask", pair_mask}},
                 [this, mode](const std::vector<Var>& in) {
                   const SingleAndPair out = run({in[0], in[1]}, in[2], in[3], mode);
                   return std::vector<Var>{out.s, out.z};
                 });
  return {y[0], y[1]};
}

PairformerModule::PairformerModule(const Build& build, const PairformerOptions& options,
                                   std::int64_t num_blocks)
    : Module(build) {
  for (std::int64_t k = 0; k < num_blocks; ++k) {
    layers_.push_back(std::make_unique<PairformerLayer>(build, options));
    add_child("layers." + std::to_string(k), *layers_.back());
  }
}

SingleAndPair PairformerModule::forward(SingleAndPair x, const Var& mask, const Var& pair_mask,
                                        const RunMode& mode) const {
  const Scope scope(name());
  for (const auto& layer : layers_)
    x = layer->forward(std::move(x), mask, pair_mask, mode.part(layer->name()));
  return x;
}

PairformerNoSeqLayer::PairformerNoSeqLayer(const Build& build, const PairStackOptions& options)
    : Module(build), pairs_(build, options) {
  add_child("tri_mul_out", pairs_.tri_mul_out);
  add_child("tri_mul_in", pairs_.tri_mul_in);
  add_child("tri_att_start", pairs_.tri_att_start);
  add_child("tri_att_end", pairs_.tri_att_end);
  add_child("transition_z", pairs_.transition_z);
}

Var PairformerNoSeqLayer::forward(Var z, const Var& pair_mask, const RunMode& mode) const {
  const Scope scope(name());
  if (!mode.checkpoint) return pairs_.forward(std::move(z), pair_mask, mode);
  return checkpoint({{"z", z}, {"pair_mask", pair_mask}},
                    [this, mode](const std::vector<Var>& in) {
                      return std::vector<Var>{pairs_.forward(in[0], in[1], mode)};
                    })
      .front();
}

PairformerNoSeqModule::PairformerNoSeqModule(const Build& build, const PairStackOptions& options,
                                             std::int64_t num_blocks)
    : Module(build) {
  for (std::int64_t k = 0; k < num_blocks; ++k) {
    layers_.push_back(std::make_unique<PairformerNoSeqLayer>(build, options));
    add_child("layers." + std::to_string(k), *layers_.back());
  }
}

Var PairformerNoSeqModule::forward(Var z, const Var& pair_mask, const RunMode& mode) const {
  const Scope scope(name());
  for (const auto& layer : layers_)
    z = layer->forward(std::move(z), pair_mask, mode.part(layer->name()));
  return z;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/layers/trunk/msa.hpp"

#include <string>
#include <utility>

#include "tessera/autodiff/checkpoint.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/outer.hpp"
#include "tessera/layers/substrate/redistribute.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kClasses = 33;
constexpr std::int64_t kHeads = 8, kHeadWidth = 32;  // of the averages
constexpr std::int64_t kHidden = 32;                 // of the outer product mean

}  // namespace

MsaLayer::MsaLayer(const Build& build, const MsaOptions& o)
    : Module(build),
      dropout_(o.msa_dropout),
      msa_transition_(build, o.msa_s, 4 * o.msa_s),
      pair_weighted_averaging_(build, o.msa_s, o.pairs.token_z, kHeadWidth, kHeads,
                               o.average_infinity),
      pairformer_layer_(build, o.pairs),
      outer_product_mean_(build, o.msa_s, kHidden, o.pairs.token_z) {
  add_child("msa_transition", msa_transition_);
  add_child("pair_weighted_averaging", pair_weighted_averaging_);
  add_child("pairformer_layer", pairformer_layer_);
  add_child("outer_product_mean", outer_product_mean_);
}

MsaAndPair MsaLayer::run(MsaAndPair x, const Var& token_mask, const Var& msa_mask,
                         const RunMode& mode) const {
  x.m = add_dropped(x.m, pair_weighted_averaging_.forward(x.m, x.z, token_mask), dropout_,
                    DropoutMask::rows, mode.part(pair_weighted_averaging_.name()));
  x.m = add(x.m, msa_transition_.forward(x.m));
  x.z = add(x.z, outer_product_mean_.forward(x.m, msa_mask));
  x.z = pairformer_layer_.forward(std::move(x.z), token_mask, mode.part(pairformer_layer_.name()));
  return x;
}

MsaAndPair MsaLayer::forward(MsaAndPair x, const Var& token_mask, const Var& msa_mask,
                             const RunMode& mode) const {
  const Scope scope(name());
  if (!mode.checkpoint) return run(std::move(x), token_mask, msa_mask, mode);
  RunMode inside = mode;  // one level: the pairs of a block are not kept a second time
  inside.checkpoint = false;
  const std::vector<Var> y =
      checkpoint({{"m", x.m}, {"z", x.z}, {"token_mask", token_mask}, {"msa_mask", msa_mask}},
                 [this, inside](const std::vector<Var>& in) {
                   const MsaAndPair out = run({in[0], in[1]}, in[2], in[3], inside);
                   return std::vector<Var>{out.m, out.z};
                 });
  return {y[0], y[1]};
}

MsaModule::MsaModule(const Build& build, const MsaModuleOptions& o)
    : Module(build),
      paired_(o.use_paired_feature),
      s_proj_(build, o.token_s, o.layer.msa_s, false),
      msa_proj_(build, kClasses, paired_ ? 3 : 2, o.layer.msa_s) {
  add_child("s_proj", s_proj_);
  add_child("msa_proj", msa_proj_);
  for (std::int64_t k = 0; k < o.blocks; ++k) {
    layers_.push_back(std::make_unique<MsaLayer>(build, o.layer));
    add_child("layers." + std::to_string(k), *layers_.back());
  }
}

Var MsaModule::embed(const Var& emb, const MsaInputs& f) const {
  std::vector<Var> numbers{f.has_deletion, f.deletion_value};
  if (paired_) numbers.push_back(f.msa_paired);
  const Var rows = msa_proj_.forward(f.msa, numbers);
  // Projected first: it moves with the fewer channels.
  const Var tokens = mesh_transpose(s_proj_.forward(emb), single_t_placements());
  return replicate_op(rows, tokens, 1, Arithmetic::add);
}

Var MsaModule::forward(Var z, const Var& emb, const MsaInputs& features,
                       const RunMode& mode) const {
  const Scope scope(name());
  const Var token_mask = outer_op(features.token_pad_mask, Outer::multiply);
  MsaAndPair x{embed(emb, features), std::move(z)};
  for (const auto& layer : layers_)
    x = layer->forward(std::move(x), token_mask, features.msa_mask, mode.part(layer->name()));
  return x.z;
}

}  // namespace tessera

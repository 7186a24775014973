// SPDX-License-Identifier: MIT
// MSA layers and their stack.
//   m += drop_rows(pair_weighted_averaging(m, z, token_mask));  m += msa_transition(m)
//   z += outer_product_mean(m, msa_mask);                       z = pairformer_layer(z, token_mask)
// Placements: m [B, S, N, msa_s], msa_mask [B, S, N] msa (S0,S1,S2); z [B, N, N, token_z],
// token_mask [B, N, N] pair. Results are placed as m and z. N and S divisible by cp0 and cp1.
// Messages and saved tensors are those of the parts; with mode.checkpoint a block keeps m, z and
// the masks, and sends its forward messages twice.
#pragma once

#include <memory>
#include <vector>

#include "tessera/layers/substrate/linear.hpp"
#include "tessera/layers/trunk/msa_features.hpp"
#include "tessera/layers/trunk/outer_product_mean.hpp"
#include "tessera/layers/trunk/pair_weighted_averaging.hpp"
#include "tessera/layers/trunk/pairformer.hpp"

namespace tessera {

struct MsaOptions {
  std::int64_t msa_s = 64;
  double msa_dropout = 0.15;
  double average_infinity = 1e6;  // of masked keys in the averages
  PairStackOptions pairs = {};
};

struct MsaAndPair {
  Var m, z;
};

// Parameters, in order: msa_transition, pair_weighted_averaging (8 heads of 32), pairformer_layer
// (without a sequence), outer_product_mean (32 hidden channels).
class MsaLayer : public Module {
 public:
  MsaLayer(const Build& build, const MsaOptions& options);
  MsaAndPair forward(MsaAndPair x, const Var& token_mask, const Var& msa_mask,
                     const RunMode& mode) const;

 private:
  MsaAndPair run(MsaAndPair x, const Var& token_mask, const Var& msa_mask,
                 const RunMode& mode) const;
  double dropout_;
  Transition msa_transition_;
  PairWeightedAveraging pair_weighted_averaging_;
  PairformerNoSeqLayer pairformer_layer_;
  OuterProductMean outer_product_mean_;
};

// All but token_pad_mask [B, N] (single) are [B, S, N], msa.
struct MsaInputs {
  Var msa;  // i64 or i32, classes 0..32
  Var has_deletion, deletion_value;
  Var msa_paired = {};  // with use_paired_feature
  Var msa_mask;
  Var token_pad_mask;
};

struct MsaModuleOptions {
  std::int64_t token_s = 0;
  std::int64_t blocks = 4;
  bool use_paired_feature = true;
  MsaOptions layer = {};
};

// m = features W^T + emb Ws^T for every row; the layers; the new z, residuals included.
//   z [B, N, N, token_z] pair, emb [B, N, token_s] single; the result is placed as z.
//   Parameters: s_proj.weight [msa_s, token_s]; msa_proj.weight [msa_s, 33 + 2 + paired];
//   layers.{k}.
//   Messages beside those of the layers: the projected emb, msa_s channels, moves to its column
//   blocks (mesh_transpose); in backward it comes back, after an all_reduce over cp0.
class MsaModule : public Module {
 public:
  MsaModule(const Build& build, const MsaModuleOptions& options);
  Var forward(Var z, const Var& emb, const MsaInputs& features, const RunMode& mode) const;

 private:
  Var embed(const Var& emb, const MsaInputs& features) const;
  bool paired_;
  Linear s_proj_;
  MsaFeatures msa_proj_;
  std::vector<std::unique_ptr<MsaLayer>> layers_;
};

}  // namespace tessera

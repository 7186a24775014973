// SPDX-License-Identifier: MIT
// Pairformer layers and their stacks.
//   z = PairStack(z, pair_mask)          (layers/trunk/pair_stack.hpp)
//   and, but for the layers without a sequence, from the new z:
//   s += attention(sh, z, mask), sh = pre_norm_s(s);  s += transition_s(s);  s = s_post_norm(s)
// Placements: z [B, N, N, token_z], pair_mask [B, N, N] pair; s [B, N, token_s], mask [B, N]
// single. Results are placed as s and z and keep their dtypes. N divisible by cp0 and cp1. The two
// masks are independent and have no gradient. Messages and saved tensors are those of the parts;
// with mode.checkpoint a block keeps z, s and the masks, and sends its forward messages twice.
#pragma once

#include <memory>
#include <vector>

#include "tessera/layers/trunk/attention_pair_bias.hpp"
#include "tessera/layers/trunk/pair_stack.hpp"

namespace tessera {

struct PairformerOptions {
  std::int64_t token_s = 0;
  std::int64_t num_heads = 16;  // of the attention on s
  bool post_layer_norm = false;
  PairStackOptions pairs = {};
};

struct SingleAndPair {
  Var s, z;
};

// Parameters, in order: pre_norm_s, attention, tri_mul_out, tri_mul_in, tri_att_start, tri_att_end,
// transition_s, transition_z, s_post_norm (with post_layer_norm).
class PairformerLayer : public Module {
 public:
  PairformerLayer(const Build& build, const PairformerOptions& options);
  SingleAndPair forward(SingleAndPair x, const Var& mask, const Var& pair_mask,
                        const RunMode& mode) const;

 private:
  SingleAndPair run(SingleAndPair x, const Var& mask, const Var& pair_mask,
                    const RunMode& mode) const;
  LayerNorm pre_norm_s_;
  AttentionPairBias attention_;
  PairStack pairs_;
  Transition transition_s_;
  std::unique_ptr<LayerNorm> s_post_norm_;
};

// Parameters: layers.{k}.
class PairformerModule : public Module {
 public:
  PairformerModule(const Build& build, const PairformerOptions& options, std::int64_t num_blocks);
  SingleAndPair forward(SingleAndPair x, const Var& mask, const Var& pair_mask,
                        const RunMode& mode) const;

 private:
  std::vector<std::unique_ptr<PairformerLayer>> layers_;
};

// Parameters, in order: tri_mul_out, tri_mul_in, tri_att_start, tri_att_end, transition_z.
class PairformerNoSeqLayer : public Module {
 public:
  PairformerNoSeqLayer(const Build& build, const PairStackOptions& options);
  Var forward(Var z, const Var& pair_mask, const RunMode& mode) const;

 private:
  PairStack pairs_;
};

// Parameters: layers.{k}.
class PairformerNoSeqModule : public Module {
 public:
  PairformerNoSeqModule(const Build& build, const PairStackOptions& options,
                        std::int64_t num_blocks);
  Var forward(Var z, const Var& pair_mask, const RunMode& mode) const;

 private:
  std::vector<std::unique_ptr<PairformerNoSeqLayer>> layers_;
};

}  // namespace tessera

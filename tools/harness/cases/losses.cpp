// SPDX-License-Identifier: MIT
#include "tessera/harness/cases/losses.hpp"

#include "tessera/harness/cases/operations.hpp"
#include "tessera/layers/losses/distogram.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;
constexpr std::int64_t kBins = 5;
constexpr std::int64_t kConformers = 3;

InputSpec tile(const Sizes& s, const char* name, std::int64_t of, std::int64_t bins) {
  return {.name = name,
          .shape = {s.batch, s.tokens, s.tokens, of, bins},
          .placements = pair_placements(),
          .low = -3,
          .high = 3};
}

// Weights of bins: one-hot rows and, at some pairs, none at all.
double one_hot(const std::vector<std::int64_t>& i) {
  const std::int64_t draw = 7 * i[0] + 5 * i[1] * i[2] + 3 * i[1] + 11 * i[2] + 2 * i[3];
  return draw % 9 != 0 && draw % kBins == i[4] ? 1 : 0;
}

InputSpec token_mask(const Sizes& s) {
  return {.name = "feats.token_disto_mask",
          .shape = {s.batch, s.tokens},
          .placements = single_placements(),
          .kind = InputKind::mask,
          .differentiable = false};
}

InputSpec dense_target(const Sizes& s) {
  InputSpec target = tile(s, "feats.disto_target", kConformers, kBins);
  target.differentiable = false;
  target.at = one_hot;
  return target;
}

InputSpec bins(const Sizes& s) {
  return {.name = "feats.disto_target",
          .shape = {s.batch, s.tokens, s.tokens, kConformers},
          .placements = pair_placements(),
          .kind = InputKind::index,
          .differentiable = false,
          .low = 0,
          .high = kBins};
}

Case distogram(const char* name, const char* description, std::int64_t predicted,
               InputSpec (*target)(const Sizes&), bool aggregate) {
  Case k = operation(
      name, description,
      [=](const Sizes& s) {
        return Inputs{tile(s, "pdistogram", predicted, kBins), target(s), token_mask(s)};
      },
      [=](const Vars& in) {
        const DistogramLoss loss = distogram_loss(in[0], in[1], in[2], aggregate);
        return Vars{loss.global, loss.batch};
      },
      {"global_loss", "batch_loss"});
  k.name = name;
  return k;
}

}  // namespace

std::vector<Case> loss_cases() {
  std::vector<Case> cases{
      distogram("distogram_loss", "Distogram loss, conformers aggregated", 1, dense_target, true),
      distogram("distogram_loss_ensemble", "Distogram loss, best distogram per conformer", 2,
                dense_target, false),
      distogram("distogram_loss_bins", "Distogram loss from bins", 1, bins, true),
      distogram("distogram_loss_ensemble_bins", "Distogram loss per conformer from bins", 2, bins,
                false)};
  cases[0].has_golden = cases[1].has_golden = true;
  return cases;
}

}  // namespace tessera::harness

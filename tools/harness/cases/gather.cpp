// SPDX-License-Identifier: MIT
#include "tessera/layers/substrate/gather.hpp"
#include "tessera/layers/substrate/outer_gather.hpp"

#include "tessera/harness/cases/operations.hpp"

namespace tessera::harness {
namespace {

using Vars = std::vector<Var>;
using Index = std::vector<std::int64_t>;
constexpr std::int64_t kWindow = 3;

// [B, N, W] indices anywhere on the tokens: every rank may need everything.
InputSpec anywhere(const Sizes& s) {
  return {.name = "idx",
          .shape = {s.batch, s.tokens, kWindow},
          .placements = single_placements(),
          .kind = InputKind::index,
          .differentiable = false,
          .low = 0,
          .high = static_cast<double>(s.tokens)};
}

// Non-decreasing along the shards and slower than they, as packed atoms point at tokens.
InputSpec sorted(const Sizes& s) {
  InputSpec spec = anywhere(s);
  spec.at = [](const Index& at) {
    return static_cast<double>((at[1] * kWindow + at[2]) * 2 / (3 * kWindow));
  };
  return spec;
}

InputSpec mask(const Sizes& s) {
  return {.name = "mask",
          .shape = {s.batch, s.tokens, kWindow},
          .placements = single_placements(),
          .kind = InputKind::boolean,
          .differentiable = false};
}

// Nothing in the second half, so that the last ranks need nothing.
InputSpec first_half(const Sizes& s) {
  InputSpec spec = mask(s);
  spec.at = [n = s.tokens](const Index& at) { return 2 * at[1] < n ? 1.0 : 0.0; };
  return spec;
}

// Three copies of every sample.
InputSpec copied(InputSpec spec) {
  spec.shape[0] *= 3;
  return spec;
}

// [B, N, W, C], what scatters add up.
InputSpec windows(const Sizes& s) {
  return {.name = "src",
          .shape = {s.batch, s.tokens, kWindow, s.channels},
          .placements = single_placements()};
}

std::vector<Case> gather_group() {
  return {
      operation(
          "gather", "Rows by random index and mask",
          [](const Sizes& s) {
            return Inputs{single(s), anywhere(s), mask(s)};
          },
          [](const Vars& in) { return Vars{gather(in[0], in[1], 1, in[2])}; }),
      operation(
          "gather.sorted", "Rows by sorted index, a short interval for each rank",
          [](const Sizes& s) {
            return Inputs{single(s), sorted(s)};
          },
          [](const Vars& in) { return Vars{gather(in[0], in[1], -2)}; }),
      operation(
          "gather.half", "The last ranks read nothing",
          [](const Sizes& s) {
            return Inputs{single(s), anywhere(s), first_half(s)};
          },
          [](const Vars& in) { return Vars{gather(in[0], in[1], 1, in[2])}; }),
      operation(
          "gather.plan", "Two tensors by one plan, the second with three copies of each sample",
          [](const Sizes& s) {
            return Inputs{single(s), copied(single(s, "z")), anywhere(s)};
          },
          [](const Vars& in) {
            const GatherPlan plan = gather_plan(in[2], 1, in[0].value().size(1));
            return Vars{gather(in[0], plan), gather(in[1], plan)};
          },
          {"y", "z"}),
  };
}

Case scatter(const char* name, const char* description, InputSpec (*chosen)(const Sizes&),
             ReduceOp reduction) {
  return operation(
      name, description,
      [chosen](const Sizes& s) {
        return Inputs{windows(s), anywhere(s), chosen(s)};
      },
      [reduction](const Vars& in) {
        const DeviceMesh& mesh = in[0].value().mesh();
        const std::int64_t own = in[0].value().size(1) / mesh.size(kCp0);
        return Vars{scatter_reduce(in[0], in[1], 1, own, reduction, in[2])};
      });
}

// A spec of [B, N, W] with another name and width.
InputSpec as(InputSpec spec, const char* name, std::int64_t width) {
  spec.name = name;
  spec.shape[2] = width;
  return spec;
}

// On the flat mesh, as many windows as pairs of tokens.
InputSpec flat(InputSpec spec) {
  spec.shape[1] *= spec.shape[1];
  spec.placements = {Shard{0}, Shard{1}};
  return spec;
}

std::vector<Case> outer_gather_group() {
  return {
      operation(
          "outer_gather", "Windows of pairs by random indices and masks",
          [](const Sizes& s) {
            return Inputs{pair(s, "z"), as(anywhere(s), "idx_n", 2), as(anywhere(s), "idx_m", 5),
                          as(mask(s), "mask_n", 2), as(mask(s), "mask_m", 5)};
          },
          [](const Vars& in) { return Vars{outer_gather(in[0], in[1], in[2], 1, in[3], in[4])}; }),
      operation(
          "outer_gather.sorted", "Windows of pairs by sorted indices, twice by one plan",
          [](const Sizes& s) {
            return Inputs{pair(s, "z"), pair(s, "u"), as(sorted(s), "idx_n", 2),
                          as(sorted(s), "idx_m", 4)};
          },
          [](const Vars& in) {
            const std::int64_t n = in[0].value().size(1);
            const OuterGatherPlan plan = outer_gather_plan(in[2], in[3], 1, n, n);
            return Vars{outer_gather(in[0], plan), outer_gather(in[1], plan)};
          },
          {"y", "v"}),
      operation(
          "outer_gather.half", "The last ranks have empty windows only",
          [](const Sizes& s) {
            return Inputs{pair(s, "z"), as(anywhere(s), "idx_n", 3), as(anywhere(s), "idx_m", 2),
                          as(first_half(s), "mask_m", 2)};
          },
          [](const Vars& in) { return Vars{outer_gather(in[0], in[1], in[2], -3, {}, in[3])}; }),
      operation(
          "outer_gather.flat", "Windows on all ranks of the grid, on the flat mesh",
          [](const Sizes& s) {
            return Inputs{pair(s, "z"), flat(as(anywhere(s), "idx_n", 2)),
                          flat(as(anywhere(s), "idx_m", 3)), flat(as(mask(s), "mask_m", 3))};
          },
          [](const Vars& in) { return Vars{outer_gather(in[0], in[1], in[2], 1, {}, in[3])}; }),
  };
}

}  // namespace

std::vector<Case> gather_cases() {
  std::vector<Case> all = gather_group();
  for (Case& c : outer_gather_group()) all.push_back(std::move(c));
  all.push_back(
      scatter("scatter_reduce.sum", "Sums of rows by random index and mask", mask, ReduceOp::sum));
  all.push_back(scatter("scatter_reduce.mean", "Means of rows by random index and mask", mask,
                        ReduceOp::avg));
  all.push_back(scatter("scatter_reduce.half", "The last ranks have nothing to add", first_half,
                        ReduceOp::avg));
  all.push_back(operation(
      "scatter_reduce.plan", "A gather and the mean of its rows by one plan, with copies",
      [](const Sizes& s) {
        return Inputs{copied(single(s)), sorted(s), mask(s)};
      },
      [](const Vars& in) {
        const GatherPlan plan = gather_plan(in[1], 1, in[0].value().size(1), in[2]);
        return Vars{scatter_reduce(gather(in[0], plan), plan, ReduceOp::avg)};
      }));
  return all;
}

}  // namespace tessera::harness

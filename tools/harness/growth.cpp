// SPDX-License-Identifier: MIT
#include "tessera/harness/growth.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/harness/report.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera::harness {
namespace {

using ByPurpose = std::array<double, kPurposes>;
constexpr double kTolerance = 0.05;  // exact for tiles; room for small terms of lower order

double& at(ByPurpose& values, Purpose purpose) {
  return values[static_cast<std::size_t>(purpose)];
}

struct Run {
  ByPurpose bytes{};
  std::vector<std::int64_t> saved;  // bytes of each tensor that is kept for the backward pass
};

// Something grows with the square of the tokens.
bool keeps_tiles(const Run& run, const Run& twice) {
  for (std::size_t k = 0; k < std::min(run.saved.size(), twice.saved.size()); ++k)
    if (run.saved[k] > 0 && twice.saved[k] >= 4 * run.saved[k]) return true;
  return false;
}

// Forward, backward and reduction on this rank.
Run run_once(const Case& c, const Sizes& sizes, const DeviceMesh& mesh, const RunOptions& options) {
  memory_ledger::reset_peak();
  ByPurpose before{};
  for (int k = 0; k < kPurposes; ++k)
    at(before, Purpose(k)) = static_cast<double>(memory_ledger::total(Purpose(k)).live);
  const Setup setup = random_setup(c, c.problem(sizes), mesh, options.dtype, options.seed);
  Tape tape;
  const std::vector<Var> outputs = setup.instance.forward(inputs_on(tape, setup));
  const auto saved = static_cast<double>(memory_ledger::total(Purpose::saved).live);
  Run run;
  for (const SavedRecord& record : tape.saved()) run.saved.push_back(record.bytes);
  tape.backward(seeds(setup, outputs));
  std::vector<Var> parameters = setup.instance.module->parameters();
  reduce_gradients(mesh, parameters);
  ByPurpose& bytes = run.bytes;
  for (int k = 0; k < kPurposes; ++k)
    at(bytes, Purpose(k)) = static_cast<double>(memory_ledger::total(Purpose(k)).peak);
  at(bytes, Purpose::saved) = saved;
  for (int k = 0; k < kPurposes; ++k) at(bytes, Purpose(k)) -= at(before, Purpose(k));
  return run;
}

ByPurpose largest_over_ranks(const DeviceMesh& mesh, const ByPurpose& own) {
  const Tensor t = Tensor::from_values({kPurposes}, {own.begin(), own.end()}, DType::f64);
  const std::array axes{0, 1, 2};
  all_reduce(mesh, axes, ReduceOp::max, t, "growth");
  const std::vector<double> values = to_values(t);
  ByPurpose all{};
  for (std::size_t k = 0; k < all.size(); ++k) all[k] = values[k];
  return all;
}

std::string format_exponent(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.3f}", value);
}

}  // namespace

double fitted_exponent(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    const double a = std::log(x[k]), b = std::log(y[k]);  // -inf or NaN end in NaN
    sx += a;
    sy += b;
    sxx += a * a;
    sxy += a * b;
  }
  const double spread = sxx - sx * sx / n;
  const double slope = (sxy - sx * sy / n) / spread;
  return std::isfinite(slope) ? slope : std::numeric_limits<double>::quiet_NaN();
}

CaseGrowth measure_growth(const Case& c, const Sizes& sizes, const DeviceMesh& mesh,
                          const RunOptions& options) {
  Sizes twice = sizes;
  twice.tokens *= 2;
  const Run run = run_once(c, sizes, mesh, options);
  const ByPurpose here = largest_over_ranks(mesh, run.bytes);
  const Run run_twice = run_once(c, twice, mesh, options);
  const ByPurpose larger = largest_over_ranks(mesh, run_twice.bytes);
  ByPurpose one{};
  collective_try(mesh, [&] {
    if (mesh.rank() == 0)
      one = run_once(c, sizes, DeviceMesh::serial(mesh.device()), options).bytes;
  });
  one = largest_over_ranks(mesh, one);

  CaseGrowth growth{c.name, keeps_tiles(run, run_twice), {}};
  for (const InputSpec& spec : c.inputs)
    growth.pair = growth.pair && spec.placements == pair_placements();
  const auto tokens = static_cast<double>(sizes.tokens);
  for (const Purpose purpose : {Purpose::saved, Purpose::activation, Purpose::gradient,
                                Purpose::communication, Purpose::workspace, Purpose::parameter}) {
    const auto k = static_cast<std::size_t>(purpose);
    if (here[k] == 0) continue;
    GrowthLine line{purpose, here[k], larger[k], one[k]};
    line.tokens_exponent = fitted_exponent({tokens, 2 * tokens}, {here[k], larger[k]});
    line.ranks_exponent =
        fitted_exponent({1, static_cast<double>(mesh.ranks())}, {one[k], here[k]});
    growth.lines.push_back(line);
  }
  return growth;
}

std::vector<std::string> CaseGrowth::failures() const {
  std::vector<std::string> all;
  if (!pair) return all;
  const auto hold = [&](double found, double expected, const char* variable) {
    if (!std::isnan(found) && !(std::abs(found - expected) <= kTolerance))
      all.push_back(fmt::format("saved bytes grow as {}^{:.3f} instead of {}^{}", variable, found,
                                variable, expected));
  };
  for (const GrowthLine& line : lines) {
    if (line.purpose != Purpose::saved) continue;
    hold(line.tokens_exponent, 2, "tokens");
    hold(line.ranks_exponent, -1, "ranks");
  }
  return all;
}

std::string growth_header(const Sizes& sizes, int ranks) {
  return fmt::format(
      "Growth of memory, bytes of the busiest rank: N = {} and {} on {} rank(s), N = {} on one.\n"
      "saved: alive after forward; others: peaks of forward and backward.\n\n"
      "{:<34} {:<14} {:>10} {:>10} {:>10} {:>9} {:>9}\n",
      sizes.tokens, 2 * sizes.tokens, ranks, sizes.tokens, "case", "purpose", "N", "2N",
      "N, 1 rank", "in N", "in ranks");
}

std::string growth_rows(const CaseGrowth& growth) {
  std::string text;
  for (const GrowthLine& line : growth.lines) {
    const auto bytes = [](double value) { return format_bytes(static_cast<std::int64_t>(value)); };
    const bool judged = growth.pair && line.purpose == Purpose::saved;
    text += fmt::format("{:<34} {:<14} {:>10} {:>10} {:>10} {:>9} {:>9}  {}\n",
                        text.empty() ? growth.name : "", name_of(line.purpose), bytes(line.bytes),
                        bytes(line.double_tokens), bytes(line.one_rank),
                        format_exponent(line.tokens_exponent), format_exponent(line.ranks_exponent),
                        !judged                     ? ""
                        : growth.failures().empty() ? "pass"
                                                    : "FAIL");
  }
  for (const std::string& failure : growth.failures()) text += fmt::format("    {}\n", failure);
  return text;
}

nlohmann::ordered_json growth_json(const std::vector<CaseGrowth>& all, const Sizes& sizes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const auto number = [](double value) {
    return std::isnan(value) ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  for (const CaseGrowth& growth : all)
    for (const GrowthLine& line : growth.lines)
      list.push_back({{"name", growth.name},
                      {"pair", growth.pair},
                      {"purpose", name_of(line.purpose)},
                      {"tokens", sizes.tokens},
                      {"bytes", line.bytes},
                      {"bytes_double_tokens", line.double_tokens},
                      {"bytes_one_rank", line.one_rank},
                      {"tokens_exponent", number(line.tokens_exponent)},
                      {"ranks_exponent", number(line.ranks_exponent)},
                      {"pass", growth.failures().empty()}});
  return list;
}

}  // namespace tessera::harness

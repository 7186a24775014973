// SPDX-License-Identifier: MIT
#include "tessera/harness/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "tessera/runtime/info.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/tf32.hpp"

namespace tessera::harness {
namespace {

using nlohmann::ordered_json;

struct Sum {
  std::int64_t messages = 0, bytes = 0;
};
Sum sum_of(const std::vector<CommTotal>& totals) {
  Sum sum;
  for (const CommTotal& t : totals) {
    sum.messages += t.messages;
    sum.bytes += t.bytes;
  }
  return sum;
}

void append(ordered_json& list, const std::vector<CommTotal>& totals, const char* pass) {
  for (const CommTotal& t : totals)
    list.push_back({{"pass", pass},
                    {"op", t.op},
                    {"axis", t.axis},
                    {"count", t.count},
                    {"messages", t.messages},
                    {"bytes", t.bytes}});
}

// The part of a path that tells files apart.
std::string file_name(const std::string& path) {
  const auto slash = path.find_last_of('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

}  // namespace

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

// The end of a long name, which says more than its begin.
std::string elided(const std::string& name) {
  constexpr std::size_t width = 26;
  return name.size() <= width ? name : "..." + name.substr(name.size() - width + 3);
}

std::string table_header(const RunDescription& run) {
  std::string text = fmt::format(
      "tessera {} parity: {} rank{} as mesh {}, {}{} on {}{}, {}, {} thread{} per rank, seed {}\n",
      version(), run.mesh.ranks(), run.mesh.ranks() == 1 ? "" : "s", format(run.mesh),
      name_of(run.dtype), tf32() ? " (TF32)" : "", name_of(run.device),
      run.against ? " against " + name_of(*run.against) : "", instruction_set(), thread_count(),
      thread_count() == 1 ? "" : "s", run.seed);
  if (is_gpu(run.device))
    text += fmt::format("{}; messages: {}\n", describe(gpu_info(run.device)), run.transport);
  text += '\n';
  text += fmt::format("{:<38} {:<6} {:>9} {:<26} {:>6} {:>10} {:>10} {:>5} {:>10} {:>8}  {}\n",
                      "case", "kind", "max rel", "in", "params", "saved", "peak", "msgs", "sent",
                      "seconds", "");
  return text;
}

std::string table_row(const CaseResult& r) {
  const Sum forward = sum_of(r.forward), backward = sum_of(r.backward);
  std::string text = fmt::format(
      "{:<38} {:<6} {:>9.1e} {:<26} {:>6} {:>10} {:>10} {:>5} {:>10} {:>8.3f}  {}\n", r.name,
      name_of(r.kind), r.worst().max_rel, elided(r.worst().tensor), r.params_checked,
      format_bytes(r.saved_bytes), format_bytes(r.peak_bytes), forward.messages + backward.messages,
      format_bytes(forward.bytes + backward.bytes), r.seconds, r.pass() ? "pass" : "FAIL");
  for (const std::string& failure : r.failures())
    text += fmt::format("    {} (tolerance {:.1e}; {})\n", failure, r.tolerance,
                        r.kind == Kind::golden ? file_name(r.problem) : r.problem);
  return text;
}

std::string table_footer(const std::vector<CaseResult>& results, std::size_t skipped_files) {
  const auto held =
      std::count_if(results.begin(), results.end(), [](const CaseResult& r) { return r.pass(); });
  std::string text = fmt::format(
      "\n{} of {} hold. max rel: largest difference over the tensor's largest value, for the "
      "worst\n"
      "tensor of outputs, input gradients and parameter gradients. saved: kept for backward per\n"
      "rank; peak: per rank; msgs, sent: by the busiest rank, forward and backward. Checked in "
      "each:\n"
      "tensors sharded, replicas bitwise equal, no gradient zero or not finite, inputs "
      "unmodified,\n"
      "saved bytes within budget, memory and messages as the contract says.\n",
      held, results.size());
  std::vector<std::string> tolerances;
  for (const Kind kind : {Kind::golden, Kind::parity})
    for (const CaseResult& r : results)
      if (r.kind == kind) {
        tolerances.push_back(fmt::format("{} {:.1e}", name_of(kind), r.tolerance));
        break;
      }
  text += fmt::format("Tolerance: {}.\n", fmt::join(tolerances, ", "));
  if (skipped_files > 0)
    text += fmt::format("{} golden files of cases that this version does not have were left out.\n",
                        skipped_files);
  return text;
}

ordered_json to_json(const RunDescription& run, const std::vector<CaseResult>& results) {
  ordered_json cases = ordered_json::array();
  for (const CaseResult& r : results) {
    ordered_json tensors = ordered_json::array();
    double max_abs = 0;
    for (const Comparison& t : r.tensors) {
      tensors.push_back({{"tensor", t.tensor}, {"max_abs", t.max_abs}, {"max_rel", t.max_rel}});
      max_abs = std::max(max_abs, t.max_abs);
    }
    ordered_json comm = ordered_json::array();
    append(comm, r.forward, "forward");
    append(comm, r.backward, "backward");
    ordered_json memory = ordered_json::array();
    for (const MemoryEntry& e : r.memory)
      memory.push_back({{"scope", e.scope},
                        {"purpose", name_of(e.purpose)},
                        {"live", e.live},
                        {"peak", e.peak}});
    cases.push_back({{"name", r.name},
                     {"kind", name_of(r.kind)},
                     {"problem", r.problem},
                     {"pass", r.pass()},
                     {"failures", r.failures()},
                     {"max_abs", max_abs},
                     {"max_rel", r.worst().max_rel},
                     {"tolerance", r.tolerance},
                     {"worst", r.worst().tensor},
                     {"outputs_checked", r.outputs_checked},
                     {"inputs_checked", r.inputs_checked},
                     {"params_checked", r.params_checked},
                     {"sharding_active", r.sharding_active},
                     {"replicas_identical", r.replicas_identical},
                     {"gradients_nonzero", r.gradients_nonzero},
                     {"finite", r.finite},
                     {"inputs_unmodified", r.inputs_unmodified},
                     {"saved_bytes", r.saved_bytes},
                     {"saved_budget", r.saved_budget},
                     {"within_budget", r.within_budget},
                     {"saved_measured", r.saved_measured},
                     {"contract_differences", r.contract_differences},
                     {"peak_bytes", r.peak_bytes},
                     {"seconds", r.seconds},
                     {"memory", std::move(memory)},
                     {"comm", std::move(comm)},
                     {"tensors", std::move(tensors)}});
  }
  bool pass = true;
  for (const CaseResult& r : results) pass = pass && r.pass();
  return {{"version", kReportVersion},
          {"tessera", version()},
          {"command", run.command},
          {"ranks", run.mesh.ranks()},
          {"mesh", {{"dp", run.mesh.dp}, {"cp0", run.mesh.cp0}, {"cp1", run.mesh.cp1}}},
          {"dtype", name_of(run.dtype)},
          {"device", name_of(run.device)},
          {"gpu", is_gpu(run.device) ? ordered_json(describe(gpu_info(run.device))) : nullptr},
          {"tf32", tf32()},
          {"transport", run.transport},
          {"instruction_set", instruction_set()},
          {"threads", thread_count()},
          {"seed", run.seed},
          {"pass", pass},
          {"cases", std::move(cases)}};
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "tessera/harness/case.hpp"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <iterator>

#include "tessera/harness/cases/losses.hpp"
#include "tessera/harness/cases/operations.hpp"
#include "tessera/harness/cases/trunk.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::harness {
namespace {

// Edit distance, to suggest names.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::string nearest(const std::string& name) {
  const auto& cases = all_cases();
  return std::min_element(cases.begin(), cases.end(),
                          [&](const Case& a, const Case& b) {
                            return distance(a.name, name) < distance(b.name, name);
                          })
      ->name;
}

std::vector<Case> built_in_cases() {
  std::vector<Case> all;
  for (const auto& group : {
           linear_cases,
           pair_weighted_averaging_cases,
           transition_cases,
           triangle_attention_cases,
           triangle_multiplication_cases,
           outer_product_mean_cases,
           attention_pair_bias_cases,
           msa_cases,
           pairformer_cases,
           elementwise_cases,
           gate_cases,
           atom_map_cases,
           gather_cases,
           loss_cases,
           pack_cases,
           reduce_cases,
           parameter_cases,
           redistribute_cases,
           outer_cases,
           reshape_cases,
           windows_cases,
       }) {
    std::vector<Case> more = group();
    std::move(more.begin(), more.end(), std::back_inserter(all));
  }
  return all;
}

std::vector<Case>& registry() {
  static std::vector<Case> cases = built_in_cases();
  return cases;
}

}  // namespace

const std::vector<Case>& all_cases() {
  return registry();
}

void add_case(Case c) {
  const auto refuse = [&](const char* problem) {
    throw UsageError({.problem = problem, .operation = "add_case", .found = "'" + c.name + "'"});
  };
  if (c.name.empty()) refuse("a case needs a name");
  if (find_case(c.name) != nullptr) refuse("there is a case of that name already");
  if (!c.problem || !c.build) refuse("a case needs a problem and a way to build its layer");
  registry().push_back(std::move(c));
}

Placements golden_placements(const Case& c, const InputSpec& spec, int ndim) {
  if (!c.any_class) return spec.placements;
  if (ndim >= 4) return pair_placements();
  if (ndim == 3) return single_placements();
  return {Shard{0}, Replicate{}, Replicate{}};
}

const Case* find_case(const std::string& name) {
  for (const Case& c : all_cases())
    if (c.name == name) return &c;
  return nullptr;
}

std::vector<Case> select_cases(const std::vector<std::string>& patterns) {
  if (patterns.empty()) return all_cases();
  std::vector<bool> chosen(all_cases().size(), false);
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (std::size_t k = 0; k < all_cases().size(); ++k)
      if (fnmatch(pattern.c_str(), all_cases()[k].name.c_str(), 0) == 0) chosen[k] = matched = true;
    if (!matched)
      throw UsageError(
          {.problem = fmt::format("no case matches '{}'", pattern),
           .operation = "--case",
           .hint = fmt::format("did you mean '{}'? --list shows all", nearest(pattern))});
  }
  std::vector<Case> selected;
  for (std::size_t k = 0; k < chosen.size(); ++k)
    if (chosen[k]) selected.push_back(all_cases()[k]);
  return selected;
}

}  // namespace tessera::harness

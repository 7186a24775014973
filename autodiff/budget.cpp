// SPDX-License-Identifier: MIT
#include "tessera/autodiff/budget.hpp"

#include <algorithm>
#include <array>

namespace tessera {

std::string_view name_of(BudgetClass budget) {
  constexpr std::array<std::string_view, 8> names{
      "single", "pair", "msa", "atom", "atom_window", "parameter", "scalar", "own block"};
  return names[static_cast<std::size_t>(budget)];
}

std::int64_t budget_elements(BudgetClass budget, const Shape& global, const DeviceMesh& mesh) {
  std::int64_t share = 1;
  switch (budget) {
    case BudgetClass::pair:
    case BudgetClass::msa:
      share = mesh.ranks();
      break;
    case BudgetClass::single:
    case BudgetClass::atom:
    case BudgetClass::atom_window:
      share = std::int64_t{mesh.size(kDp)} * mesh.size(kCp0);  // kCp0 is cp on the flat mesh
      break;
    case BudgetClass::parameter:
    case BudgetClass::scalar:
    case BudgetClass::own:
      break;
  }
  return (numel(global) + share - 1) / share;
}

BudgetClass budget_of(const Placements& placements) {
  // One axis after dp on the flat mesh, else two.
  const bool cut = std::all_of(placements.begin() + kCp0, placements.end(),
                               [](const Placement& p) { return is_shard(p); });
  return cut ? BudgetClass::pair : BudgetClass::single;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
// Budget classes: how much of a tensor one rank may keep for the backward pass.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/placement.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// Per-rank share of a tensor of that class, of its global number of elements:
//   pair, msa          1 / (dp * cp0 * cp1)
//   single, atom       1 / (dp * cp0)
//   atom_window        1 / (dp * cp0)
//   parameter, scalar  1
//   own                the block of the tensor that the rank holds, whatever its placements
enum class BudgetClass : std::uint8_t {
  single,
  pair,
  msa,
  atom,
  atom_window,
  parameter,
  scalar,
  own
};
std::string_view name_of(BudgetClass budget);

// The bound in elements, rounded up. Of `own`, `global` is the shape of the block itself.
std::int64_t budget_elements(BudgetClass budget, const Shape& global, const DeviceMesh& mesh);

// The class whose standard placement (mesh/placement.hpp) an activation of this form has: pair for
// tensors sharded on every axis but perhaps dp, else single.
BudgetClass budget_of(const Placements& placements);

// What one function keeps for its backward pass.
struct SavedRecord {
  std::string function;
  std::string scope;
  std::string tensor;
  BudgetClass budget = BudgetClass::scalar;
  std::int64_t bytes = 0;         // of this rank
  std::int64_t bound = 0;         // bytes allowed
  const void* storage = nullptr;  // tensors that share storage are kept once
  bool within() const { return bytes <= bound; }
};

}  // namespace tessera

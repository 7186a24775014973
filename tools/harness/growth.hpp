// SPDX-License-Identifier: MIT
// How the memory of a layer grows with the tokens and shrinks with the ranks, measured.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tessera/harness/parity.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera::harness {

// Slope of log y over log x, by least squares. NaN without two distinct x, or if a value is not
// positive.
double fitted_exponent(const std::vector<double>& x, const std::vector<double>& y);

// One purpose: bytes of the rank that has most. `saved` is what is alive when forward has ended,
// others are peaks of forward and backward.
struct GrowthLine {
  Purpose purpose = Purpose::saved;
  double bytes = 0;          // N tokens on the mesh
  double double_tokens = 0;  // 2N tokens on the mesh
  double one_rank = 0;       // N tokens on one rank
  double tokens_exponent = 0;
  double ranks_exponent = 0;  // NaN on a mesh of one
};

struct CaseGrowth {
  std::string name;
  bool pair = false;  // all inputs are pair tensors, and something of that size is kept
  std::vector<GrowthLine> lines;
  // A pair tensor is [N, N] and spread over all ranks: its bytes grow as N^2 / ranks.
  std::vector<std::string> failures() const;
};

// Collective; equal on all ranks. The run on one rank is made by rank 0.
CaseGrowth measure_growth(const Case& c, const Sizes& sizes, const DeviceMesh& mesh,
                          const RunOptions& options);

std::string growth_header(const Sizes& sizes, int ranks);
std::string growth_rows(const CaseGrowth& growth);
nlohmann::ordered_json growth_json(const std::vector<CaseGrowth>& all, const Sizes& sizes);

}  // namespace tessera::harness

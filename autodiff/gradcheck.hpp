// SPDX-License-Identifier: MIT
// Gradients against central differences of fourth order, on any mesh.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

struct GradcheckOptions {
  double step = 3e-4;  // of the perturbation
  int samples = 6;     // elements per leaf, drawn by global index
  std::uint64_t seed = 1;
};

struct GradcheckResult {
  double max_error = 0;  // |analytic - numeric| / max(1, |numeric|)
  std::string worst;     // "x[12]: analytic ..., numeric ..."
  int elements = 0;      // compared
};

// Collective over the leaves' mesh. `function` computes outputs from the leaves, on the given tape;
// those without gradient are left out. Leaves that require gradients (f64 only, TypeError) are
// perturbed in place and restored. The upstream gradients are random. Their gradients are cleared
// before and left reduced after.
GradcheckResult gradcheck(const std::function<std::vector<Var>(Tape&)>& function,
                          std::vector<Var> leaves, const GradcheckOptions& options = {});

}  // namespace tessera

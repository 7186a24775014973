// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Gradients of every case against central differences, which share nothing with the backward code.
#include <nlohmann/json.hpp>
#include <numeric>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/autodiff/gradcheck.hpp"
#include "tessera/harness/problem.hpp"

using namespace tessera;
using namespace tessera::harness;

TEST_CASE("central differences agree with every gradient") {
  const MeshShape shape = squarest(test_ranks());
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  const std::int64_t tokens = 2 * std::lcm(shape.cp0, shape.cp1);
  for (const Case& c : all_cases()) {
    if (c.stack && mesh.ranks() > 1) continue;  // hundreds of runs; parity leads back to one rank
    // Norms of few channels have large higher derivatives, and a stack multiplies them.
    const std::int64_t channels = c.stack ? 12 : 3;
    const Problem problem = c.problem({2, std::max<std::int64_t>(tokens, 4), channels});
    // Next to the usual 1e6 and more, what a difference changes in logits whose keys are all masked
    // would be rounded away.
    if (problem.hyperparameters->contains("inf")) (*problem.hyperparameters)["inf"] = 1e3;
    const Setup setup = random_setup(c, problem, mesh, DType::f64, 5);
    std::vector<Var> leaves = setup.instance.module->parameters();
    std::vector<Var> inputs;
    for (std::size_t k = 0; k < setup.inputs.size(); ++k) {
      inputs.push_back(
          Var::parameter(setup.specs[k].name, setup.inputs[k], setup.specs[k].differentiable));
      if (setup.specs[k].differentiable) leaves.push_back(inputs.back());
    }
    const auto function = [&](Tape& tape) {
      std::vector<Var> on_tape;
      for (const Var& x : inputs) on_tape.push_back(tape.adopt(x));
      return setup.instance.forward(on_tape);
    };
    if (leaves.empty()) continue;  // a case without gradients
    const GradcheckResult result =
        gradcheck(function, leaves, {.step = c.stack ? 5e-5 : 3e-4, .samples = c.stack ? 1 : 4});
    INFO(c.name << " " << result.worst);
    CHECK(result.elements >= static_cast<int>(leaves.size()));
    // Truncation: step^4 (8e-15, 6e-18 of a stack) times fifth derivatives, which layer norms make
    // large. Rounding: 2^-53 over the step, times results.
    CHECK(result.max_error < 1e-8);
  }
}

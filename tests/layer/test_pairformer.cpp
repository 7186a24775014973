// SPDX-License-Identifier: MIT
// ranks: 1
// Pairformer and MSA layers: memory on meshes of any size, dropout, refusals.
#include <string>

#include "harness/contract_table.hpp"
#include "harness/problem.hpp"
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/layers/trunk/msa.hpp"
#include "tessera/runtime/hash.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

using Vars = std::vector<Var>;

// Peaks of forward and backward, of the rank that needs most.
struct Peaks {
  std::int64_t activations = 0;  // inputs, results and what is kept
  std::int64_t all = 0;          // and gradients, messages, workspace; but no parameters
};
Peaks peaks_of(const char* name, const Sizes& sizes, const MeshShape& shape) {
  const Case& c = *find_case(name);
  Peaks worst;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const DeviceMesh mesh = DeviceMesh::dry_run(shape, rank);
    const Setup setup = random_setup(c, c.problem(sizes), mesh, DType::f32, 1);
    std::int64_t parameters = 0;
    for (const Var& p : setup.instance.module->parameters())
      parameters += p.value().local().bytes();
    memory_ledger::reset_peak();
    Tape tape;
    tape.backward(seeds(setup, setup.instance.forward(inputs_on(tape, setup))));
    const auto peak = [](Purpose purpose) { return memory_ledger::total(purpose).peak; };
    worst.activations =
        std::max(worst.activations, peak(Purpose::activation) + peak(Purpose::saved));
    worst.all = std::max(worst.all, memory_ledger::total().peak - parameters);
  }
  return worst;
}

}  // namespace

TEST_CASE("the memory of a layer of the model's size falls with the ranks") {
  for (const char* name : {"pairformer_layer", "msa_layer"})
    for (const auto& [side, tokens, share] : {std::tuple{2, 256, 0.27}, std::tuple{3, 258, 0.13}}) {
      const Sizes sizes{1, tokens, 128};
      const Peaks serial = peaks_of(name, sizes, {1, 1, 1});
      const Peaks grid = peaks_of(name, sizes, {1, side, side});
      CAPTURE(name, side, grid.activations, serial.activations, grid.all, serial.all);
      CHECK(static_cast<double>(grid.activations) <=
            share * static_cast<double>(serial.activations));
      CHECK(static_cast<double>(grid.all) <= share * static_cast<double>(serial.all));
    }
}

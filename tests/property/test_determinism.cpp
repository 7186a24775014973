// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Two runs of the same problem give the same bits: outputs, input gradients, parameter gradients.
#include <numeric>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/harness/problem.hpp"
#include "tessera/runtime/hash.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

std::vector<std::uint64_t> bits(const Case& c, const DeviceMesh& mesh, const Sizes& sizes,
                                std::uint64_t seed) {
  const Setup setup = random_setup(c, c.problem(sizes), mesh, DType::f32, seed);
  Tape tape;
  const std::vector<Var> inputs = inputs_on(tape, setup);
  const std::vector<Var> outputs = setup.instance.forward(inputs);
  tape.backward(seeds(setup, outputs));
  std::vector<Var> parameters = setup.instance.module->parameters();
  reduce_gradients(mesh, parameters);
  std::vector<std::uint64_t> all;
  for (const Var& y : outputs) all.push_back(hash_of(y.value().local()));
  for (const Var& x : inputs)
    if (x.has_grad()) all.push_back(hash_of(x.grad().local()));
  for (const Var& p : parameters) all.push_back(hash_of(p.grad().local()));
  return all;
}

}  // namespace

TEST_CASE("the same problem twice gives the same bits, another seed does not") {
  const MeshShape shape = squarest(test_ranks());
  const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
  const Sizes sizes{2, 4 * std::lcm(shape.cp0, shape.cp1), 40};
  for (const Case& c : all_cases()) {
    CAPTURE(c.name);
    const std::vector<std::uint64_t> first = bits(c, mesh, sizes, 3);
    CHECK(first == bits(c, mesh, sizes, 3));
    CHECK(first != bits(c, mesh, sizes, 4));
  }
}

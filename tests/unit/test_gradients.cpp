// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// A parameter that is used on a pair activation (a summand on every axis) and on a single one
// (complete on cp1) has one gradient, the serial one, equal on all ranks.
#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/substrate/linear.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/random.hpp"

using namespace tessera;

namespace {

constexpr std::int64_t kTokens = 12;

DTensor input(const char* name, const Shape& shape, const Placements& placements,
              const DeviceMesh& mesh, DType dtype) {
  return uniform(shape, dtype, mesh, placements, {7, stream_id(name)}, -1, 1);
}

// The gradients of weight and bias, reduced.
std::vector<Tensor> gradients(const DeviceMesh& mesh, DType dtype) {
  Linear linear({mesh, at_least_f32(dtype)}, 3, 5);
  linear.initialize(11);
  Tape tape;
  const std::int64_t batch = 2 * 12;  // divisible by every dp that the tests use
  const Var pair = tape.input(
      "pair", input("pair", {batch, kTokens, kTokens, 3}, pair_placements(), mesh, dtype), false);
  const Var single = tape.input(
      "single", input("single", {batch, kTokens, 3}, single_placements(), mesh, dtype), false);
  const Var y = linear.forward(pair);
  const Var z = linear.forward(single);
  tape.backward({{y, input("gy", y.value().shape(), y.value().placements(), mesh, dtype)},
                 {z, input("gz", z.value().shape(), z.value().placements(), mesh, dtype)}});
  std::vector<Var> parameters = linear.parameters();
  if (mesh.ranks() > 1) CHECK_THROWS_AS(parameters[0].grad(), GradientError);
  reduce_gradients(mesh, parameters);
  std::vector<Tensor> all;
  for (const Var& p : parameters) all.push_back(p.grad().local());
  return all;
}

double worst(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const Difference d = max_difference(a[k], b[k]);
    worst = std::max(worst, d.max_abs / d.max_reference);
  }
  return worst;
}

}  // namespace

TEST_CASE("contributions with unlike placements become the serial gradient") {
  const std::vector<Tensor> serial = gradients(DeviceMesh::serial(), DType::f64);
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    if (kTokens % shape.cp0 != 0 || kTokens % shape.cp1 != 0) continue;
    CAPTURE(format(shape));
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    const std::vector<Tensor> own = gradients(mesh, DType::f64);
    CHECK(worst(own, serial) < 1e-13);
    const std::vector<int> axes{kDp, kCp0, kCp1};
    for (const Tensor& g : own) CHECK(replicas_identical(mesh, axes, g));
  }
}

TEST_CASE("gradients of f32 parameters on bf16 activations are f32 sums") {
  const std::vector<Tensor> serial = gradients(DeviceMesh::serial(), DType::bf16);
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::vector<Tensor> own = gradients(mesh, DType::bf16);
  CHECK(own[0].dtype() == DType::f32);
  CHECK(worst(own, serial) < 1e-5);  // f32 sums in another order
}

#ifdef TESSERA_TEST_HOOKS
TEST_CASE("a skipped reduction and one over a replicated axis give other numbers") {
  if (test_ranks() == 1) return;
  const std::vector<Tensor> serial = gradients(DeviceMesh::serial(), DType::f64);
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  for (const Mutation wrong :
       {Mutation::skip_parameter_reduction, Mutation::reduce_over_replicate_axis}) {
    set_mutation(wrong);
    const std::vector<Tensor> own = gradients(mesh, DType::f64);
    set_mutation(Mutation::none);
    CHECK(worst(own, serial) > 1e-2);
  }
}
#endif

// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Weighted means over any dims against one rank and against the formula.
#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/weighted_mean.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

}  // namespace

TEST_CASE("weighted means over any dims") {
  on_all_meshes(10, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim);
    const Shape shape = draw.shape(mesh, placements, ndim);
    std::vector<int> dims{draw.below(ndim) - ndim};
    for (int d = 0; d < ndim; ++d)
      if (d != dims[0] + ndim && draw.below(2) == 0) dims.push_back(d);
    const Operand x{draw.values(shape, -1, 1), placements};
    const Operand w{draw.values(shape, 0.5, 2), placements, draw.below(2) == 0};
    const double eps = draw.below(2) == 0 ? 0 : 0.25;
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{weighted_mean(in[0], in[1], dims, eps)}; }, {x, w},
        1e-12);
  });
}

TEST_CASE("shards of unlike weight, and eps once") {
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, n});
  std::vector<double> x, w;
  double total = 0, weight = 0.5;
  for (int k = 0; k < 2 * n; ++k) {
    x.push_back(k);
    w.push_back(k < n ? 0 : k);
    total += x.back() * w.back();
    weight += w.back();
  }
  const auto placed = [&](const std::vector<double>& values) {
    return Var::constant(distribute(Tensor::from_values({2 * n}, values, DType::f64), mesh,
                                    {Replicate{}, Replicate{}, Shard{0}}));
  };
  const DTensor y = weighted_mean(placed(x), placed(w), {0}, 0.5).value();
  CHECK(y.placements() == replicated_placements());
  check_close(y.local(), {total / weight}, 1e-15);
}

TEST_CASE("what weighted_mean refuses, for all placements of the weights") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Placements usual{Shard{0}, Shard{1}, Replicate{}};
  const Var x = Var::constant(zeros({12, 12}, DType::f64, mesh, usual));
  int refused = 0;
  for (const Placements& placements : every_placement(2)) {
    const DTensor w = zeros({12, 12}, DType::f64, mesh, placements);
    INFO(format(placements));
    const Var v = Var::constant(w);
    if (placements == usual) {
      CHECK(weighted_mean(x, v, {0, 1}, 1).value().defined());
      continue;
    }
    ++refused;
    require_error<PlacementError>(
        [&] {
          weighted_mean(x, v, {0, 1}, 1);
        },
        "weighted_mean", "'b'", format(placements), format(usual));
    if (has_partial(placements))
      require_error<PartialError>(
          [&] {
            weighted_mean(v, v, {0, 1}, 1);
          },
          "weighted_mean", "'a'", "Partial");
  }
  CHECK(refused > 20);
  const Var bits = Var::constant(zeros({12, 12}, DType::boolean, mesh, usual));
  require_error<TypeError>([&] { weighted_mean(x, bits, {0}); }, "weighted_mean", "'w'", "bool");
  require_error<RangeError>([&] { weighted_mean(x, x, {0, -2}); }, "weighted_mean", "twice");
  require_error<RangeError>([&] { weighted_mean(x, x, {}); }, "weighted_mean", "one or more");
  require_error<RangeError>([&] { weighted_mean(x, x, {2}); }, "weighted_mean");
}

// SPDX-License-Identifier: MIT
// ranks: 1 4 6
#include <array>
#include <numeric>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/schedule/column.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

TEST_CASE("every block arrives, from one source for each part") {
  for (const MeshShape& shape :
       {MeshShape{1, 1, 1}, MeshShape{1, 2, 2}, MeshShape{1, 2, 3}, MeshShape{1, 3, 2},
        MeshShape{1, 1, 4}, MeshShape{1, 4, 1}, MeshShape{2, 4, 6}, MeshShape{1, 5, 7}})
    for (const auto& [from, to] : {std::pair{kCp0, kCp1}, std::pair{kCp1, kCp0}}) {
      CAPTURE(format(shape), from);
      const std::int64_t n = 2 * std::lcm(shape.cp0, shape.cp1);
      std::vector<ColumnPlan> plans;
      for (int rank = 0; rank < shape.ranks(); ++rank)
        plans.push_back(plan_column(DeviceMesh::dry_run(shape, rank), n, from, to));
      for (int rank = 0; rank < shape.ranks(); ++rank) {
        const ColumnPlan& plan = plans[static_cast<std::size_t>(rank)];
        std::int64_t covered = plan.kept.size();
        for (const ColumnPlan::Part& r : plan.receives) {
          covered += r.region.size();
          const ColumnPlan& source = plans[static_cast<std::size_t>(r.peer)];
          CHECK(intersect(source.source, r.region) == r.region);
          int found = 0;
          for (const ColumnPlan::Part& s : source.sends)
            found += s.peer == rank && s.region == r.region ? 1 : 0;
          CHECK(found == 1);
        }
        CHECK(covered == plan.target.size());
        if (shape.cp0 == shape.cp1) CHECK(plan.sends.size() <= 1);
        if (shape.cp0 == shape.cp1 && plan.sends.size() == 1) {
          const DeviceMesh mesh = DeviceMesh::dry_run(shape, rank);
          std::vector<int> mirror = mesh.coordinate();
          std::swap(mirror[kCp0], mirror[kCp1]);
          CHECK(plan.sends[0].peer == mesh.rank_of(mirror));
          CHECK(plan.sends[0].region == plan.source);
        }
      }
    }
}

TEST_CASE("column operands and the way back, any order of dims in memory") {
  on_all_meshes(2, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
    const Tensor full = draw.values({2 * mesh.size(kDp), n, 3}, -1, 1);
    const DTensor x = distribute(full, mesh, single_placements());
    const DTensor turned =
        DTensor::from_local(x.local().permute({2, 0, 1}), mesh, {Shard{1}, Shard{2}, Replicate{}},
                            {3, full.size(0), n}, {1, 3 * n, 3});
    const DTensor y = exchange_column(x, kCp0, kCp1, "x");
    CHECK(y.placements() == single_t_placements());
    CHECK(to_values(full_tensor(y)) == to_values(full));
    CHECK(to_values(exchange_column(y, kCp1, kCp0, "back").local()) == to_values(x.local()));
    const DTensor z = exchange_column(turned, kCp0, kCp1, "turned");
    CHECK(z.strides() == turned.strides());
    CHECK(to_values(full_tensor(z)) == to_values(full.permute({2, 0, 1})));
  });
}

TEST_CASE("a column operand needs one sharded and one replicated axis") {
  const DeviceMesh mesh = DeviceMesh::dry_run({1, 2, 2}, 0);
  const DTensor x = zeros({2, 4, 4}, DType::f64, mesh, pair_placements());
  require_error<PlacementError>([&] { exchange_column(x, kCp0, kCp1, "x"); }, "exchange_column",
                                "cp0", "cp1", "(S0,S1,S2)");
}

TEST_CASE("the adjoint brings every summand home once") {
  on_all_meshes(3, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
    const Tensor full = draw.integers({2 * mesh.size(kDp), n, 3}, -9, 9).to(DType::f64);
    const DTensor x = distribute(full, mesh, single_placements());
    const DTensor y = exchange_column(x, kCp0, kCp1, "x");
    // Other summands on each rank; sum over ranks of y u is that of x v.
    std::vector<double> values;
    for (std::int64_t k = 0; k < y.local().numel(); ++k)
      values.push_back(static_cast<double>((7 * k + 5 * mesh.rank()) % 19 - 9));
    const Tensor u = Tensor::from_values(y.local().shape(), values, DType::f64);
    const Tensor v = add_columns(mesh, u, 1, n, kCp0, kCp1, "u");
    CHECK(v.shape() == x.local().shape());
    const auto over_ranks = [&](const Tensor& a, const Tensor& b) {
      const Tensor product = Tensor::empty(a.shape(), DType::f64),
                   sum = Tensor::empty({1, 1, 1}, DType::f64);
      multiply(a, b, product);
      fold(Fold::sum, product, {0, 1, 2}, sum);
      const std::array axes{kDp, kCp0, kCp1};
      all_reduce(mesh, axes, ReduceOp::sum, sum, "product");
      return sum.item({0, 0, 0});
    };
    CHECK(over_ranks(y.local(), u) == over_ranks(x.local(), v));
  });
}

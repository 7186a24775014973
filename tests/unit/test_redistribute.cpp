// SPDX-License-Identifier: MIT
// ranks: 1 4 6
#include <algorithm>
#include <array>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/dtensor.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

const RandomStream kStream{23, stream_id("x")};

Shape cube() {
  const std::int64_t n = 2 * test_ranks();
  return {n, n, n};
}

Tensor whole_uniform(const Shape& shape) {
  const Tensor full = Tensor::empty(shape, DType::f64);
  fill_uniform(full, kStream, whole(shape), -1, 1);
  return full;
}

// A tensor that is Partial on one axis: every rank of the group holds the whole, scaled by a
// weight of its coordinate, so that the weights decide the reduction.
DTensor partial_of(const Tensor& full, const DeviceMesh& mesh, int axis, ReduceOp op) {
  Placements placements = replicated_placements();
  placements[std::size_t(axis)] = Partial{op};
  const Tensor local = full.clone();
  scale(1 + mesh.coordinate(axis), local);
  return DTensor::from_local(local, mesh, placements, full.shape(),
                             row_major_strides(full.shape()));
}

double factor_of(ReduceOp op, int n) {
  const double sum = n * (n + 1) / 2.0;
  return op == ReduceOp::sum ? sum : sum / n;
}

std::string newest_op(const DeviceMesh& mesh) {
  return mesh.records().empty() ? "" : mesh.records().back().op;
}

}  // namespace

TEST_CASE("transitions between S and R on every axis keep the values", "[redistribute]") {
  const Tensor full = whole_uniform(cube());
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (int axis = 0; axis < 3; ++axis)
      for (const Placement& from :
           std::vector<Placement>{Replicate{}, Shard{0}, Shard{1}, Shard{2}})
        for (const Placement& to :
             std::vector<Placement>{Replicate{}, Shard{0}, Shard{1}, Shard{2}}) {
          Placements before = replicated_placements();
          Placements after = before;
          before[std::size_t(axis)] = from;
          after[std::size_t(axis)] = to;
          CAPTURE(format(shape), format(before), format(after));
          const DTensor x = distribute(full, mesh, before);
          mesh.clear_records();
          const DTensor y = redistribute(x, after, "x");
          CHECK(y.placements() == after);
          CHECK(to_values(y.local()) == to_values(distribute(full, mesh, after).local()));
          const std::string expected = mesh.size(axis) == 1 || from == to || is_replicate(from) ? ""
                                       : is_replicate(to) ? "all_gather"
                                                          : "all_to_all";
          CHECK(newest_op(mesh) == expected);
          CHECK(mesh.records().size() == (expected.empty() ? 0u : 1u));
          if (from == to) CHECK(y.local().shares_storage(x.local()));
        }
  }
}

TEST_CASE("Partial becomes R or S by a reduction", "[redistribute]") {
  const Tensor full = whole_uniform(cube());
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    for (int axis = 0; axis < 3; ++axis)
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg})
        for (const Placement& to : std::vector<Placement>{Replicate{}, Shard{0}, Shard{2}}) {
          CAPTURE(format(shape), axis, name_of(op), format(to));
          const DTensor x = partial_of(full, mesh, axis, op);
          Placements after = replicated_placements();
          after[std::size_t(axis)] = to;
          mesh.clear_records();
          const DTensor y = redistribute(x, after, "gradient");
          const Tensor reference = full.clone();
          scale(factor_of(op, mesh.size(axis)), reference);
          const DTensor expected = distribute(reference, mesh, after);
          CHECK(max_difference(y.local(), expected.local()).max_abs <= 100 * 0x1p-52);
          if (mesh.size(axis) > 1)
            CHECK(newest_op(mesh) == (is_replicate(to) ? "all_reduce" : "reduce_scatter"));
        }
  }
}

TEST_CASE("Partial(max) to S", "[redistribute]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  const Tensor full = Tensor::full({test_ranks(), 2}, 1, DType::f32);
  const DTensor x = partial_of(full, mesh, kCp0, ReduceOp::max);
  const DTensor y = redistribute(x, {Replicate{}, Shard{0}, Replicate{}}, "m");
  CHECK(y.local().shape() == Shape{1, 2});
  CHECK(y.local().item({0, 1}) == test_ranks());
}

TEST_CASE("several axes change in ascending order", "[redistribute]") {
  const Tensor full = whole_uniform(cube());
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    const std::array<Placements, 4> forms{
        Placements{Shard{0}, Shard{1}, Shard{2}}, Placements{Replicate{}, Replicate{}, Shard{2}},
        Placements{Shard{0}, Replicate{}, Replicate{}}, replicated_placements()};
    for (const Placements& before : forms)
      for (const Placements& after : forms) {
        const DTensor x = distribute(full, mesh, before);
        mesh.clear_records();
        const DTensor y = redistribute(x, after, "x");
        CHECK(to_values(y.local()) == to_values(distribute(full, mesh, after).local()));
        std::vector<std::string> axes;
        for (const CommRecord& r : mesh.records()) axes.push_back(r.axis);
        const auto order = [](const std::string& axis) { return axis == "dp" ? 0 : axis.back(); };
        CHECK(std::is_sorted(axes.begin(), axes.end(),
                             [&](const auto& a, const auto& b) { return order(a) < order(b); }));
      }
  }
}

TEST_CASE("a transposed tensor becomes row-major", "[redistribute]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const std::int64_t n = test_ranks();
  const Tensor full = whole_uniform({3, 2 * n});
  const Tensor local = full.narrow(1, 2 * mesh.rank(), 2).transpose(0, 1).contiguous();
  // Global shape [3, 2n] with the second dim slowest.
  const DTensor x = DTensor::from_local(local.transpose(0, 1), mesh,
                                        {Replicate{}, Replicate{}, Shard{1}}, {3, 2 * n}, {1, 3});
  const DTensor y = redistribute(x, replicated_placements(), "x");
  CHECK(y.strides() == Strides{2 * n, 1});
  CHECK(to_values(y.local()) == to_values(full));
  CHECK(to_values(full_tensor(x)) == to_values(full));
}

TEST_CASE("transitions that are refused", "[redistribute]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const DTensor x = distribute(whole_uniform(cube()), mesh, single_placements());
  const auto to = [&](const Placements& placements) { redistribute(x, placements, "pair"); };
  require_error<PlacementError>(
      [&] {
        to({Shard{0}, Shard{1}, Partial{}});
      },
      "R -> P(sum)", "redistribute", "(S0,S1,R)");
  require_error<PlacementError>([&] { to({Shard{0}, Partial{}, Replicate{}}); }, "S(1) -> P(sum)");
  require_error<PlacementError>(
      [&] {
        to({Shard{0}, Replicate{}, Shard{1}});
      },
      "dim 1 moves from mesh axis cp0 to cp1", "mesh_transpose");
  const DTensor pair = distribute(whole_uniform(cube()), mesh, pair_placements());
  require_error<PlacementError>(
      [&] {
        redistribute(pair, {Shard{0}, Shard{2}, Shard{1}}, "pair");
      },
      "moves from mesh axis");
  require_error<PlacementError>([&] { to({Shard{0}, Shard{1}, Shard{1}}); }, "'pair'", "dim 1");
  require_error<RangeError>([&] { to({Shard{0}, Shard{3}, Replicate{}}); }, "S3");
  require_error<MeshError>([&] { to({Shard{0}}); }, "3 placements");
  require_error<TypeError>([&] { redistribute(DTensor(), pair_placements(), "pair"); }, "'pair'");
  const DTensor p = partial_of(whole_uniform({4}), mesh, kCp1, ReduceOp::sum);
  require_error<PlacementError>(
      [&] {
        redistribute(p, {Replicate{}, Replicate{}, Partial{ReduceOp::avg}}, "g");
      },
      "P(sum) -> P(avg)");
  if (mesh.size(kCp1) > 1) {
    const DTensor odd = zeros({mesh.size(kCp1) + 1}, DType::f32, mesh, replicated_placements());
    require_error<UnevenError>(
        [&] {
          redistribute(odd, {Replicate{}, Replicate{}, Shard{0}}, "odd");
        },
        "redistribute", "'odd'", "next valid size is " + std::to_string(2 * mesh.size(kCp1)));
  }
}

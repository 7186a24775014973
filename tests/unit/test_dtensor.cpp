// SPDX-License-Identifier: MIT
// ranks: 1 4 6
#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/dtensor.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

const RandomStream kStream{17, stream_id("x")};

// A tensor that every rank can make whole.
Tensor whole_uniform(const Shape& shape, DType dtype) {
  const Tensor full = Tensor::empty(shape, dtype);
  fill_uniform(full, kStream, whole(shape), -1, 1);
  return full;
}

// A pair shape that divides on every mesh of this size.
Shape pair_shape() {
  const std::int64_t n = test_ranks();
  return {n, n, 2 * n, 3};
}

template <class Check>
void on_all_meshes(const Check& check) {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    check(DeviceMesh::create(test_world(), shape));
  }
}

const std::vector<Placements> kPlacements{
    {Shard{0}, Shard{1}, Shard{2}},    {Shard{0}, Shard{2}, Shard{1}},
    {Replicate{}, Shard{1}, Shard{0}}, {Shard{0}, Shard{1}, Replicate{}},
    {Shard{0}, Replicate{}, Shard{1}}, {Replicate{}, Replicate{}, Replicate{}}};

}  // namespace

TEST_CASE("distribute, fill and collect agree on every mesh", "[dtensor]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    for (const Placements& placements : kPlacements)
      for (const DType dtype : {DType::f64, DType::bf16}) {
        CAPTURE(format(placements));
        const Shape shape = pair_shape();
        const Tensor full = whole_uniform(shape, dtype);
        mesh.clear_records();
        const DTensor x = distribute(full, mesh, placements);
        CHECK(mesh.records().empty());
        CHECK(x.shape() == shape);
        CHECK(x.strides() == row_major_strides(shape));
        CHECK(x.dtype() == dtype);
        CHECK(x.size(-1) == 3);
        CHECK_FALSE(x.local().shares_storage(full));
        const GlobalBlock block = global_block(shape, mesh, placements);
        Tensor slice = full;
        for (int d = 0; d < 4; ++d)
          slice = slice.narrow(d, block.offset[std::size_t(d)], x.local().size(d));
        CHECK(to_values(x.local()) == to_values(slice));
        CHECK(to_values(full_tensor(x)) == to_values(full));
        // A draw depends on the global index only.
        const DTensor drawn = uniform(shape, dtype, mesh, placements, kStream, -1, 1);
        CHECK(to_values(drawn.local()) == to_values(x.local()));
      }
  });
}

TEST_CASE("distribute_from_root gives every rank its block", "[dtensor]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    for (const Placements& placements : kPlacements) {
      CAPTURE(format(placements));
      const Tensor full = whole_uniform(pair_shape(), DType::f32);
      const Tensor given = mesh.rank() == 0 ? full : Tensor();
      const DTensor x = distribute_from_root(given, mesh, placements, pair_shape(), DType::f32);
      CHECK(to_values(x.local()) == to_values(distribute(full, mesh, placements).local()));
      CHECK_FALSE(x.local().shares_storage(full));
    }
  });
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const auto wrong = [&](const Tensor& given) {
    distribute_from_root(mesh.rank() == 0 ? given : Tensor(), mesh, pair_placements(), pair_shape(),
                         DType::f32);
  };
  require_error<ShapeError>([&] { wrong(Tensor()); }, "distribute_from_root", "undefined");
  require_error<ShapeError>([&] { wrong(whole_uniform(pair_shape(), DType::f64)); }, "f64", "f32");
  require_error<PlacementError>(
      [&] {
        distribute_from_root(Tensor(), mesh, {Partial{}, Shard{1}, Shard{2}}, pair_shape(),
                             DType::f32);
      },
      "Partial", "(P(sum),S1,S2)");
}

TEST_CASE("full_tensor finishes Partial tensors", "[dtensor]") {
  on_all_meshes([](const DeviceMesh& mesh) {
    const Tensor full = whole_uniform({6}, DType::f64);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min}) {
      const Placements placements{Partial{op}, Partial{op}, Partial{op}};
      const DTensor x =
          DTensor::from_local(full.clone(), mesh, placements, {6}, row_major_strides({6}));
      const Tensor scaled = full.clone();
      if (op == ReduceOp::sum) scale(mesh.ranks(), scaled);
      CHECK(max_difference(full_tensor(x), scaled).max_abs <= mesh.ranks() * 0x1p-50);
      CHECK(to_values(x.local()) == to_values(full));  // not in place
    }
  });
}

#ifdef TESSERA_ASSERTIONS
TEST_CASE("full_tensor is refused inside a pass", "[dtensor]") {
  const DTensor x = zeros({2}, DType::f32, DeviceMesh::serial(), replicated_placements());
  {
    const ComputeScope pass;
    require_error<GradientError>([&] { full_tensor(x); }, "full_tensor", "pass");
  }
  full_tensor(x);
}
#endif

TEST_CASE("from_local refuses what is not a block", "[dtensor]") {
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, n});
  const Tensor local = Tensor::zeros({2, 3, 4}, DType::f32);
  const Shape shape{2, 3, 4 * n};
  const Strides strides = row_major_strides(shape);
  const Placements last{Replicate{}, Replicate{}, Shard{2}};
  const auto make = [&](const Tensor& t, const Placements& p, const Shape& s, const Strides& st) {
    return DTensor::from_local(t, mesh, p, s, st);
  };
  CHECK(make(local, last, shape, strides).describe() ==
        "f32 [2, 3, " + std::to_string(4 * n) + "] (R,R,S2) local [2, 3, 4]");
  require_error<TypeError>([&] { make(Tensor(), last, shape, strides); }, "no local tensor");
  require_error<MeshError>([&] { DTensor::from_local(local, DeviceMesh(), last, shape, strides); },
                           "no mesh");
  require_error<MeshError>([&] { make(local, {Shard{2}}, shape, strides); }, "(S2)",
                           "3 placements");
  require_error<ShapeError>(
      [&] {
        make(local, last, {2, 5, 4 * n}, {20 * n, 4 * n, 1});
      },
      "from_local", "[2, 3, 4]", "(R,R,S2)", "cp1=" + std::to_string(n), "expected [2, 5, 4]");
  require_error<ShapeError>([&] { make(local, last, {2, 0, 4 * n}, strides); }, "size zero");
  require_error<RangeError>(
      [&] {
        make(local, {Replicate{}, Replicate{}, Shard{3}}, shape, strides);
      },
      "S3");
  require_error<PlacementError>(
      [&] {
        make(local, {Replicate{}, Shard{2}, Shard{2}}, shape, strides);
      },
      "dim 2");
  require_error<RangeError>([&] { make(Tensor::zeros({}, DType::f32), last, {}, {}); }, "shape []");
  CHECK(make(Tensor::zeros({}, DType::f32), replicated_placements(), {}, {}).ndim() == 0);
  if (n > 1)
    require_error<UnevenError>(
        [&] {
          make(local, last, {2, 3, 4 * n + 1}, strides);
        },
        "dim 2", "size " + std::to_string(4 * n + 1), "mesh axis 2",
        "next valid size is " + std::to_string(5 * n));
}

TEST_CASE("global strides are positive, unique, exhaustive and in the local order", "[dtensor]") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const Tensor local = Tensor::zeros({2, 3, 4}, DType::f32);
  const auto make = [&](const Tensor& t, const Strides& strides) {
    return DTensor::from_local(t, mesh, replicated_placements(), t.shape(), strides);
  };
  make(local, {12, 4, 1});
  require_error<StrideError>([&] { make(local, {12, 4}); }, "one stride per dim", "3 strides");
  require_error<StrideError>([&] { make(local, {12, 4, 0}); }, "positive");
  require_error<StrideError>([&] { make(local, {12, 4, -1}); }, "positive");
  require_error<StrideError>([&] { make(local, {4, 4, 1}); }, "unique");
  require_error<StrideError>([&] { make(local, {24, 8, 2}); }, "exhaustive", "[12, 4, 1]");
  require_error<StrideError>([&] { make(local, {12, 1, 3}); }, "another order", "[12, 4, 1]");
  const Tensor turned = local.transpose(0, 2);  // [4, 3, 2], strides 1, 4, 12
  make(turned, {1, 4, 12});
  require_error<StrideError>([&] { make(turned, {6, 2, 1}); }, "another order");
  const Tensor expanded = Tensor::zeros({4}, DType::f32).as_strided({3, 4}, {0, 1}, 0);
  require_error<StrideError>([&] { make(expanded, {4, 1}); }, "another order");
  // Strides of size-1 dims do not matter and are made regular.
  const DTensor x = make(Tensor::zeros({2, 1, 3}, DType::f32), {3, 999, 1});
  CHECK(x.strides() == Strides{3, 6, 1});
}

TEST_CASE("carry_strides keeps the order of dims", "[dtensor]") {
  CHECK(carry_strides({2, 3, 4}, {12, 4, 1}, {3, 5, 2}) == Strides{10, 2, 1});
  CHECK(carry_strides({3, 1, 5}, {5, 5, 1}, {4, 2, 6}) == Strides{12, 6, 1});
  CHECK(carry_strides({2, 3, 4}, {1, 2, 6}, {2, 3, 4}) == Strides{1, 2, 6});
  CHECK(carry_strides({}, {}, {}).empty());
  require_error<StrideError>([] { carry_strides({2, 3}, {4, 1}, {2, 3}); }, "exhaustive");
  require_error<ShapeError>([] { carry_strides({2, 3}, {3, 1}, {6}); }, "2 dims");
}

TEST_CASE("with_local keeps the metadata", "[dtensor]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, test_ranks(), 1});
  const DTensor x =
      zeros({2, 4 * test_ranks()}, DType::f32, mesh, {Replicate{}, Shard{1}, Replicate{}});
  const DTensor y = x.with_local(Tensor::zeros({2, 4}, DType::f64));
  CHECK(y.dtype() == DType::f64);
  CHECK(y.shape() == x.shape());
  CHECK(y.placements() == x.placements());
  require_error<ShapeError>([&] { x.with_local(Tensor::zeros({4, 2}, DType::f32)); }, "[2, 4]");
}

TEST_CASE("the guard checks in its order", "[dtensor]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const Placements last{Replicate{}, Replicate{}, Shard{1}};
  const Shape shape{3, 2 * test_ranks()};
  const DTensor x = zeros(shape, DType::f32, mesh, last);
  const DTensor p = DTensor::from_local(Tensor::zeros({3}, DType::f32), mesh,
                                        {Partial{}, Replicate{}, Replicate{}}, {3}, {1});
  expect(x, "op", "z", {});
  expect(x, "op", "z", {.shape = shape, .mesh = mesh, .placements = last, .ndim = 2});
  expect(p, "op", "g", {.allow_partial = true});
  const DeviceMesh other = DeviceMesh::serial();
  require_error<TypeError>([&] { expect(DTensor(), "tri_mul", "z", {}); }, "tri_mul", "'z'");
  // Everything is wrong: the first in the order is named.
  Expect wrong{.shape = Shape{9}, .mesh = other, .placements = pair_placements()};
  require_error<ShapeError>([&] { expect(x, "tri_mul", "z", wrong); }, "tri_mul", "'z'",
                            format_shape(shape), "(R,R,S1)", "expected [9]");
  wrong.shape = {};
  require_error<MeshError>([&] { expect(x, "tri_mul", "z", wrong); }, "wrong mesh",
                           mesh.describe());
  wrong.mesh = {};
  require_error<PlacementError>([&] { expect(x, "tri_mul", "z", wrong); }, "(R,R,S1)",
                                "expected (S0,S1,S2)");
  require_error<PartialError>([&] { expect(p, "linear", "g", {}); }, "linear", "(P(sum),R,R)");
  require_error<ShapeError>([&] { expect(x, "op", "z", {.ndim = 4}); }, "4 dims");
  // The flat view of the same ranks is another mesh.
  require_error<MeshError>([&] { expect(x, "op", "z", {.mesh = mesh.flatten_cp()}); }, "cp=");
}

TEST_CASE("what cannot be distributed", "[dtensor]") {
  const int n = test_ranks();
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, n});
  require_error<TypeError>([&] { distribute(Tensor(), mesh, pair_placements()); }, "distribute");
  require_error<PlacementError>(
      [&] {
        distribute(Tensor::zeros({2}, DType::f32), mesh, {Partial{}, Replicate{}, Replicate{}});
      },
      "distribute", "(P(sum),R,R)");
  require_error<ShapeError>(
      [&] {
        zeros({2, 0}, DType::f32, mesh, replicated_placements());
      },
      "zeros", "size zero");
  require_error<RangeError>([&] { empty({2, 2}, DType::f32, mesh, pair_placements()); }, "empty");
  if (n > 1)
    require_error<UnevenError>(
        [&] {
          empty({1, 1, n + 1}, DType::f32, mesh, pair_placements());
        },
        "empty", "next valid size is " + std::to_string(2 * n));
}

TEST_CASE("the flat mesh distributes too", "[dtensor]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks())).flatten_cp();
  const Tensor full = whole_uniform({2, 2 * test_ranks(), 3}, DType::f32);
  const DTensor x = distribute(full, mesh, {Shard{0}, Shard{1}});
  CHECK(x.local().shape() == Shape{2, 2, 3});
  CHECK(to_values(full_tensor(x)) == to_values(full));
}

TEST_CASE("a tensor on part of the world", "[dtensor]") {
  const Communicator part = test_subworld();
  if (part.size() == 0) return;
  const DeviceMesh mesh = DeviceMesh::create(part, squarest(part.size()));
  const std::int64_t n = mesh.ranks();
  const Tensor full = whole_uniform({1, n, n, 2}, DType::f64);
  const Tensor given = mesh.rank() == 0 ? full : Tensor();
  const DTensor x = distribute_from_root(given, mesh, pair_placements(), full.shape(), DType::f64);
  CHECK(to_values(full_tensor(x)) == to_values(full));
}

// SPDX-License-Identifier: MIT
// ranks: 1 4 6
#include <mpi.h>

#include <array>
#include <numeric>
#include <set>

#include "support/catch.hpp"
#include "support/mpi.hpp"
#include "tessera/mesh/collectives.hpp"

using namespace tessera;

namespace {

DeviceMesh line_mesh(const Communicator& world) {
  return DeviceMesh::create(world, {1, 1, world.size()});
}

// Every rank contributes its rank; the sum shows that messages arrive where they should.
bool all_ranks_talk(const DeviceMesh& mesh) {
  const Tensor sum = Tensor::from_values({1}, {double(mesh.rank())}, DType::i64);
  const std::array axes{kDp, kCp0, kCp1};
  all_reduce(mesh, axes, ReduceOp::sum, sum, "ranks");
  return *sum.host_data<std::int64_t>() == mesh.ranks() * (mesh.ranks() - 1) / 2;
}

}  // namespace

TEST_CASE("mesh shapes as text", "[mesh]") {
  CHECK(parse_mesh_shape("2x3") == MeshShape{1, 2, 3});
  CHECK(parse_mesh_shape("4x2x3") == MeshShape{4, 2, 3});
  CHECK(format(MeshShape{1, 2, 3}) == "2x3");
  CHECK(format(MeshShape{2, 2, 3}) == "2x2x3");
  for (const char* text : {"", "2", "2x", "x2", "2x3x4x5", "0x2", "-1x2", "2X3", "2x3 ", "axb",
                           "99999999999x1", "1048577x1"}) {
    CAPTURE(text);
    require_error<UsageError>([&] { parse_mesh_shape(text); }, "CP0xCP1");
  }
  CHECK(squarest(1) == MeshShape{1, 1, 1});
  CHECK(squarest(4) == MeshShape{1, 2, 2});
  CHECK(squarest(6) == MeshShape{1, 2, 3});
  CHECK(squarest(7) == MeshShape{1, 1, 7});
  CHECK(squarest(12) == MeshShape{1, 3, 4});
}

TEST_CASE("coordinates, ranks and groups", "[mesh]") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    CAPTURE(format(shape));
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    REQUIRE(mesh.ranks() == test_ranks());
    REQUIRE(mesh.rank() == test_rank());
    REQUIRE(mesh.shape() == std::vector<int>{shape.dp, shape.cp0, shape.cp1});
    for (int rank = 0; rank < mesh.ranks(); ++rank) {
      const std::vector<int> c = mesh.coordinate_of(rank);
      CHECK((c[0] * shape.cp0 + c[1]) * shape.cp1 + c[2] == rank);
      CHECK(mesh.rank_of(c) == rank);
      CHECK(mesh.rank_of({c[0] + shape.dp, c[1] - shape.cp0, c[2] - 2 * shape.cp1}) == rank);
    }
    CHECK(mesh.coordinate_of(mesh.rank()) == mesh.coordinate());
    for (const std::vector<int>& axes :
         std::vector<std::vector<int>>{{}, {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
      std::vector<int> expected;
      for (int rank = 0; rank < mesh.ranks(); ++rank) {
        const std::vector<int> c = mesh.coordinate_of(rank);
        bool same = true;
        for (int axis = 0; axis < 3; ++axis)
          if (std::find(axes.begin(), axes.end(), axis) == axes.end())
            same = same && c[std::size_t(axis)] == mesh.coordinate(axis);
        if (same) expected.push_back(rank);
      }
      CHECK(mesh.group(axes) == expected);
    }
    CHECK(all_ranks_talk(mesh));
  }
}

TEST_CASE("the flat view is the same mesh with other axes", "[mesh]") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const DeviceMesh flat = mesh.flatten_cp();
  CHECK(flat.ndim() == 2);
  CHECK(flat.shape() == std::vector<int>{1, test_ranks()});
  CHECK(flat.coordinate(1) == test_rank());
  CHECK(flat.axis_name(1) == "cp");
  CHECK(flat != mesh);
  CHECK(flat == mesh.flatten_cp());
  CHECK(flat.unflatten_cp() == mesh);
  CHECK(mesh.unflatten_cp() == mesh);
  CHECK(mesh == DeviceMesh(mesh));
  const std::array axes{0, 1};
  CHECK(flat.axes_name(axes) == "dp+cp");
  // One sequence and one ledger.
  barrier(mesh);
  barrier(flat);
  CHECK(mesh.records().size() == flat.records().size());
  if (test_ranks() > 1) {
    REQUIRE(mesh.records().size() == 2);
    CHECK(mesh.records()[1].sequence == mesh.records()[0].sequence + 1);
    CHECK(mesh.records()[1].axis == "dp+cp");
  }
}

TEST_CASE("a serial mesh needs nobody", "[mesh]") {
  const DeviceMesh mesh = DeviceMesh::serial();
  CHECK(mesh.ranks() == 1);
  CHECK(mesh.describe() == "mesh dp=1 cp0=1 cp1=1");
  CHECK(all_ranks_talk(mesh));
  barrier(mesh);
  CHECK(mesh.records().empty());
  CHECK(mesh != DeviceMesh::serial());
}

TEST_CASE("meshes that cannot be are refused on every rank", "[mesh]") {
  const int ranks = test_ranks();
  require_error<InitError>(
      [&] {
        DeviceMesh::create(test_world(), {1, ranks, 2});
      },
      std::to_string(ranks) + " rank(s)", format(squarest(ranks)));
  require_error<InitError>([&] { DeviceMesh::create(test_world(), {0, 1, ranks}); }, "rank(s)");
  require_error<InitError>([&] { DeviceMesh::create(test_world(), {-1, -1, ranks}); }, "rank(s)");
  if (ranks > 1) {
    const MeshShape mine = test_rank() == 0 ? MeshShape{1, 1, ranks} : MeshShape{1, ranks, 1};
    require_error<InitError>([&] { DeviceMesh::create(test_world(), mine); }, "different meshes",
                             "cp0 1.." + std::to_string(ranks));
  }
  require_error<InitError>([] { DeviceMesh().rank(); }, "no mesh");
  require_error<InitError>([] { DeviceMesh::create(Communicator(), {}); }, "not part");
  CHECK(all_ranks_talk(line_mesh(test_world())));  // nothing was left behind
}

TEST_CASE("a mesh on part of the world, whose rank 0 is not world rank 0", "[mesh]") {
  const Communicator part = test_subworld();
  if (part.size() == 0) return;
  const DeviceMesh mesh = DeviceMesh::create(part, squarest(part.size()));
  CHECK(mesh.rank() == test_ranks() - 1 - test_rank());
  CHECK(all_ranks_talk(mesh));
}

TEST_CASE("two meshes of one communicator do not meet", "[mesh]") {
  const DeviceMesh a = line_mesh(test_world());
  const DeviceMesh b = line_mesh(test_world());
  const Tensor from_a = Tensor::full({4}, test_rank(), DType::f64);
  const Tensor from_b = Tensor::full({4}, 100 + test_rank(), DType::f64);
  const Tensor into_a = Tensor::zeros({4}, DType::f64);
  const Tensor into_b = Tensor::zeros({4}, DType::f64);
  Pending pa = shift(a, kCp1, 1, from_a, into_a, "a");
  Pending pb = shift(b, kCp1, 1, from_b, into_b, "b");
  pb.wait();
  pa.wait();
  const int before = (test_rank() + test_ranks() - 1) % test_ranks();
  CHECK(into_a.item({3}) == before);
  CHECK(into_b.item({3}) == 100 + before);
}

TEST_CASE("the caller's communicator is left as it was", "[mesh]") {
  MPI_Comm own = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &own);
  MPI_Comm_set_errhandler(own, MPI_ERRORS_ARE_FATAL);
  {
    const Communicator copy = Communicator::duplicate(&own);
    CHECK(all_ranks_talk(line_mesh(copy)));
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(own, &handler);
    CHECK(handler == MPI_ERRORS_ARE_FATAL);
  }
  MPI_Comm_free(&own);
  const MPI_Comm none = MPI_COMM_NULL;
  require_error<InitError>([&] { Communicator::duplicate(&none); }, "MPI_COMM_NULL");
}

TEST_CASE("messages of a wrong rank are refused", "[mesh]") {
  char byte = 0;
  require_error<RangeError>([&] { test_world().send(test_ranks(), &byte, 1, 0); }, "rank");
  require_error<RangeError>([&] { Communicator::self().receive(0, &byte, 1, 0); }, "MPI");
}

TEST_CASE("communicators split by colour", "[mesh]") {
  const Communicator half = test_world().split(test_rank() % 2, -test_rank());
  CHECK(half.size() == (test_ranks() + 1 - test_rank() % 2) / 2);
  CHECK(half.rank() == half.size() - 1 - test_rank() / 2);
  CHECK(Communicator::self().split(3, 0).size() == 1);
  CHECK(Communicator::self().split(-1, 0).size() == 0);
}

TEST_CASE("a dry run knows everything and sends nothing", "[mesh]") {
  const DeviceMesh mesh = DeviceMesh::dry_run({2, 3, 4}, 17);
  CHECK(mesh.ranks() == 24);
  CHECK(mesh.coordinate() == std::vector<int>{1, 1, 1});
  const Tensor x = Tensor::zeros({8}, DType::f32);
  const Tensor y = Tensor::zeros({8}, DType::f32);
  require_error<InitError>([&] { shift(mesh, kCp1, 1, x, y, "x").wait(); }, "dry run");
  REQUIRE(mesh.records().size() == 1);
  CHECK(mesh.records()[0].bytes == 32);
  require_error<InitError>([] { DeviceMesh::dry_run({1, 2, 2}, 4); }, "rank 4 of mesh 2x2");
}

TEST_CASE("meshes come and go", "[mesh]") {
  // Leaked communicators would run out of context ids, of which MPI has a few thousand.
  for (int k = 0; k < 5000; ++k) {
    const DeviceMesh mesh = line_mesh(test_world());
    if (k % 500 == 0) REQUIRE(all_ranks_talk(mesh));
  }
}

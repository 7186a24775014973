// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Operations that change dims, on random shapes, placements and meshes.
#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/substrate/reshape.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

}  // namespace

TEST_CASE("unsqueeze and squeeze anywhere") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim);
    const Shape shape = draw.shape(mesh, placements, ndim);
    const int dim = draw.below(ndim + 1);
    const Operand x{draw.values(shape, -1, 1), placements};
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{unsqueeze(in[0], dim - ndim - 1)}; }, {x}, 0);
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{squeeze(unsqueeze(in[0], dim), dim)}; }, {x}, 0);
  });
}

TEST_CASE("chunk and cat along any whole dim") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 2 + draw.below(3);
    const int dim = draw.below(ndim);
    const Placements placements = draw.placements(mesh, ndim, {dim});
    Shape shape = draw.shape(mesh, placements, ndim);
    shape[static_cast<std::size_t>(dim)] = 1 + draw.below(7);
    const int n = 1 + draw.below(4);
    const Operand x{draw.values(shape, -1, 1), placements};
    check_against_serial(
        mesh, [&](const Vars& in) { return chunk(in[0], n, dim - ndim); }, {x}, 0);
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          Vars pieces = chunk(in[0], n, dim);
          pieces.push_back(in[1]);
          return Vars{cat(pieces, dim)};
        },
        {x, {draw.values(shape, -1, 1, DType::f32), placements}}, 0);
  });
}

TEST_CASE("what is refused, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  int refused = 0;
  for (const Placements& placements : every_placement(3)) {
    DTensor x;
    try {
      x = zeros({n, n, n}, DType::f64, mesh, placements);
    } catch (const PlacementError&) {
      continue;  // one dim sharded twice
    }
    INFO(format(placements));
    const bool partial = std::any_of(placements.begin(), placements.end(), is_partial);
    const bool sharded = std::any_of(placements.begin(), placements.end(),
                                     [](const Placement& p) { return is_shard(p, 1); });
    const Var v = Var::constant(x);
    if (!partial && !sharded) {
      CHECK(chunk(v, 2, 1).size() == 2);
      continue;
    }
    ++refused;
    if (sharded) {
      require_error<PlacementError>([&] { chunk(v, 2, 1); }, "chunk", "'x'", "dim 1",
                                    "redistribute");
      require_error<PlacementError>([&] { cat({v, v}, 1); }, "cat", "'part 0'", "dim 1");
    } else {
      require_error<PartialError>([&] { chunk(v, 2, 1); }, "chunk", "'x'", "Partial");
      require_error<PartialError>([&] { unsqueeze(v, 1); }, "unsqueeze", "'x'", "Partial");
    }
  }
  CHECK(refused > 20);
}

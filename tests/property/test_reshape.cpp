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

TEST_CASE("repeat_interleave along any dim") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const int dim = draw.below(ndim);
    const int r = 1 + draw.below(3);
    const Placements placements = draw.placements(mesh, ndim);
    const Shape shape = draw.shape(mesh, placements, ndim);
    const auto operation = [&](const Vars& in) {
      return Vars{repeat_interleave(in[0], r, dim - ndim)};
    };
    check_against_serial(mesh, operation, {{draw.values(shape, -1, 1), placements}}, 0);
    check_against_serial(mesh, operation, {{draw.integers(shape, 0, 9), placements, false}}, 0);
  });
}

TEST_CASE("copies of an element follow each other") {
  const Tensor x = Tensor::from_values({3}, {1, 2, 3}, DType::f64);
  const DTensor full = distribute(x, DeviceMesh::serial(), replicated_placements());
  const DTensor y = repeat_interleave(Var::constant(full), 2, 0).value();
  CHECK(to_values(y.local()) == std::vector<double>{1, 1, 2, 2, 3, 3});
}

namespace {

// A random range of dims of which only the first may be sharded, and is if `sharded`.
struct Range {
  int ndim, start, end;
  Placements placements;
  Shape shape;

  Range(const DeviceMesh& mesh, Draw& draw, bool sharded)
      : ndim(1 + draw.below(5)), start(draw.below(ndim)), end(start + draw.below(ndim - start)) {
    std::vector<int> whole;
    for (int d = start; d <= end; ++d) whole.push_back(d);
    placements = draw.placements(mesh, ndim, whole);
    if (sharded) placements[static_cast<std::size_t>(draw.below(mesh.ndim()))] = Shard{start};
    shape = draw.shape(mesh, placements, ndim);
  }
  Shape sizes() const { return {shape.begin() + start, shape.begin() + end + 1}; }
};

}  // namespace

TEST_CASE("flatten and unflatten anywhere") {
  on_all_meshes(12, [](const DeviceMesh& mesh, Draw& draw) {
    const Range r(mesh, draw, false);
    const Operand x{draw.values(r.shape, -1, 1), r.placements};
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const Var flat = flatten(in[0], r.start - r.ndim, r.end);
          return Vars{flat, unflatten(flat, r.start, r.sizes())};
        },
        {x}, 0);
  });
}

TEST_CASE("flatten_sharded and unflatten_sharded anywhere") {
  on_all_meshes(12, [](const DeviceMesh& mesh, Draw& draw) {
    const Range r(mesh, draw, true);
    const Operand x{draw.values(r.shape, -1, 1), r.placements};
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const Var flat = flatten_sharded(in[0], r.start, r.end - r.ndim);
          if (r.start == r.end) return Vars{flat};
          return Vars{flat, unflatten_sharded(flat, r.start, r.sizes())};
        },
        {x}, 0);
  });
}

TEST_CASE("changes of dims do not ask how operands lie in memory") {
  Draw draw(3);
  const Operand x{draw.values({2, 3, 4, 5}, -1, 1), replicated_placements()};
  const std::vector<Operation> operations{
      [](const Vars& in) { return Vars{unsqueeze(in[0], 2)}; },
      [](const Vars& in) {
        return Vars{cat({in[0], in[0]}, 1)};
      },
      [](const Vars& in) { return chunk(in[0], 3, 2); },
      [](const Vars& in) { return Vars{repeat_interleave(in[0], 3, 1)}; },
      [](const Vars& in) { return Vars{flatten(in[0], 1, 2)}; },
      [](const Vars& in) { return Vars{flatten(in[0], 0, -1)}; },
      [](const Vars& in) {
        return Vars{unflatten(in[0], 2, {2, 2})};
      },
      // A piece of a tensor has gaps in memory.
      [](const Vars& in) { return Vars{flatten(chunk(in[0], 2, 2)[1], 1, 3)}; },
      [](const Vars& in) { return Vars{flatten(unsqueeze(chunk(in[0], 2, 1)[0], 1), 1, 2)}; }};
  for (const Operation& operation : operations) check_any_layout(operation, {x}, 0);
}

TEST_CASE("what is refused, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  int refused = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = zeros({n, n, n}, DType::f64, mesh, placements);
    INFO(format(placements));
    const bool partial = has_partial(placements);
    const bool sharded = shards(placements, 1);
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

TEST_CASE("what flattening refuses, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  int plain = 0, with_shard = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = zeros({n, n, n}, DType::f64, mesh, placements);
    INFO(format(placements));
    const auto sharded = [&](int dim) { return shards(placements, dim); };
    const bool partial = has_partial(placements);
    const Var v = Var::constant(x);
    const auto flat = [&] { return flatten(v, 1, 2); };
    const auto parts = [&] { return unflatten(v, 1, {n, 1}); };
    const auto flat_sharded = [&] { return flatten_sharded(v, 1, 2); };
    const auto parts_sharded = [&] { return unflatten_sharded(v, 1, {n, 1}); };
    if (sharded(1) || sharded(2))
      require_error<PlacementError>(flat, "flatten", "'x'", "must not be sharded", "sharded form");
    if (sharded(1))
      require_error<PlacementError>(parts, "unflatten", "'x'", "dim 1", "sharded form");
    else
      require_error<PlacementError>(parts_sharded, "unflatten_sharded", "'x'", "dim 1 must be");
    if (sharded(2))
      require_error<PlacementError>(flat_sharded, "flatten_sharded", "'x'", "dim 2",
                                    "redistribute");
    else if (!sharded(1))
      require_error<PlacementError>(flat_sharded, "flatten_sharded", "'x'", "dim 1 must be");
    if (partial) {
      require_error<PartialError>([&] { repeat_interleave(v, 2, 1); }, "repeat_interleave", "'x'");
      if (!sharded(1)) require_error<PartialError>(parts, "unflatten", "'x'", "Partial");
      if (!sharded(1) && !sharded(2)) require_error<PartialError>(flat, "flatten", "'x'");
      if (sharded(1) && !sharded(2))
        require_error<PartialError>(flat_sharded, "flatten_sharded", "'x'");
      if (sharded(1)) require_error<PartialError>(parts_sharded, "unflatten_sharded", "'x'");
      continue;
    }
    CHECK(repeat_interleave(v, 2, 1).value().placements() == placements);
    if (!sharded(1) && !sharded(2)) {
      ++plain;
      CHECK(flat().value().ndim() == 2);
      CHECK(parts().value().ndim() == 4);
    }
    if (sharded(1) && !sharded(2)) {
      ++with_shard;
      CHECK(flat_sharded().value().placements() == placements);
      CHECK(parts_sharded().value().placements() == placements);
    }
  }
  CHECK(plain == 4);       // dim 0 on one of three axes or on none
  CHECK(with_shard == 9);  // dim 1 on one of three axes, dim 0 on one of the two others or on none
}

TEST_CASE("other errors of reshaping") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const std::int64_t n = 12;
  const Var x =
      Var::constant(zeros({4, n}, DType::f64, mesh, {Replicate{}, Replicate{}, Shard{1}}));
  require_error<RangeError>([&] { flatten(x, 1, 0); }, "flatten", "start <= end");
  require_error<RangeError>([&] { flatten(x, 0, 2); }, "flatten");
  require_error<RangeError>([&] { repeat_interleave(x, 0, 0); }, "repeat_interleave", "0");
  require_error<RangeError>([&] { repeat_interleave(x, 2, -3); }, "repeat_interleave");
  for (const Shape& sizes : {Shape{}, Shape{3, 2}, Shape{-1, 2}, Shape{-2, -2}})
    require_error<ShapeError>([&] { unflatten(x, 0, sizes); }, "unflatten", "'x'", "product 4");
  require_error<ShapeError>([&] { unflatten_sharded(x, 1, {n}); }, "unflatten_sharded", "two dims");
  if (test_ranks() > 1)
    require_error<UnevenError>(
        [&] {
          unflatten_sharded(x, 1, {1, n});
        },
        "unflatten_sharded", "'x'", "divisible");
}

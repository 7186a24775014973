// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Windows of pairs on random shapes, meshes, indices and masks.
#include <algorithm>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/errors.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/outer_gather.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;
enum class Masked { random, second_half, all };

struct Problem {
  int dim = 1;
  Operand z, n, m, mask_n, mask_m;
};

Tensor draw_mask(Draw& draw, const Shape& shape, int dim, Masked masked) {
  if (masked == Masked::random) return draw.booleans(shape);
  const Tensor mask = Tensor::zeros(shape, DType::boolean);
  const std::int64_t half = shape[static_cast<std::size_t>(dim)] / 2;
  if (masked == Masked::second_half) fill(mask.narrow(dim, 0, half), 1);
  return mask;
}

// Where the windows are: the same on all columns of the grid, or on its ranks.
enum class Windows { rows, flat };

Problem draw_problem(const DeviceMesh& mesh, Draw& draw, Masked masked, Windows on) {
  Problem p;
  p.dim = draw.below(3);
  const Placement dp =
      p.dim > 0 && draw.below(3) > 0 ? Placement{Shard{draw.below(p.dim)}} : Placement{Replicate{}};
  Placements single{dp, Shard{p.dim}};
  if (on == Windows::rows) single.push_back(Replicate{});
  const Placements pair{dp, Shard{p.dim}, Shard{p.dim + 1}};
  const Shape batch = draw.shape(mesh, {dp}, p.dim);
  const auto with = [&](const Shape& rest) {
    Shape shape = batch;
    shape.insert(shape.end(), rest.begin(), rest.end());
    return shape;
  };
  const std::int64_t rows = mesh.size(kCp0) * (1 + draw.below(3));
  const std::int64_t cols = mesh.size(kCp1) * (1 + draw.below(3));
  const int ranks = mesh.size(kCp0) * (on == Windows::flat ? mesh.size(kCp1) : 1);
  const std::int64_t windows = ranks * (1 + draw.below(3));
  Shape features{rows, cols};
  for (int k = draw.below(3); k > 0; --k) features.push_back(1 + draw.below(3));
  const Shape n = with({windows, 1 + draw.below(3)}), m = with({windows, 1 + draw.below(3)});
  p.z = {draw.values(with(features), -1, 1), pair};
  p.n = {draw.integers(n, 0, static_cast<int>(rows)), single, false};
  p.m = {draw.integers(m, 0, static_cast<int>(cols)), single, false};
  p.mask_n = {draw_mask(draw, n, p.dim, masked), single, false};
  p.mask_m = {draw_mask(draw, m, p.dim, masked), single, false};
  return p;
}

}  // namespace

namespace {

void check_bits(Windows on) {
  for (const Masked masked : {Masked::random, Masked::second_half, Masked::all})
    on_all_meshes(8, [&](const DeviceMesh& mesh, Draw& draw) {
      const Problem p = draw_problem(mesh, draw, masked, on);
      Operand still = p.z;
      still.differentiable = false;
      const auto masked_both = [&](const Vars& in) {
        return Vars{outer_gather(in[0], in[1], in[2], p.dim, in[3], in[4])};
      };
      check_against_serial(mesh, masked_both, {still, p.n, p.m, p.mask_n, p.mask_m}, 0);
      check_against_serial(mesh, masked_both, {p.z, p.n, p.m, p.mask_n, p.mask_m}, 0);
      check_against_serial(
          mesh,
          [&](const Vars& in) { return Vars{outer_gather(in[0], in[1], in[2], p.dim, {}, in[3])}; },
          {p.z, p.n, p.m, p.mask_m}, 0);
    });
}

}  // namespace

TEST_CASE("outer gather: forward and gradients as on one rank, bit for bit") {
  check_bits(Windows::rows);
}

TEST_CASE("outer gather on the flat mesh: forward and gradients as on one rank, bit for bit") {
  check_bits(Windows::flat);
}

TEST_CASE("outer gather: backward counts how often an element was read") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t b = mesh.size(kDp), rows = 2 * mesh.size(kCp0), cols = 3 * mesh.size(kCp1);
    const std::int64_t windows = 2 * mesh.size(kCp0) * mesh.size(kCp1);
    const Tensor n = draw.integers({b, windows, 2}, -1, static_cast<int>(rows));  // -1: nothing
    const Tensor m = draw.integers({b, windows, 3}, -1, static_cast<int>(cols));
    const Tensor expected = Tensor::zeros({b, rows, cols}, DType::f64);
    auto* counts = expected.host_data<double>();
    for (std::int64_t i = 0; i < b; ++i)
      for (std::int64_t k = 0; k < windows; ++k)
        for (std::int64_t w = 0; w < 2; ++w)
          for (std::int64_t h = 0; h < 3; ++h) {
            const auto row = static_cast<std::int64_t>(n.item({i, k, w}));
            const auto col = static_cast<std::int64_t>(m.item({i, k, h}));
            if (row >= 0 && col >= 0) ++counts[(i * rows + row) * cols + col];
          }
    for (const bool flat : {false, true}) {
      Placements single{Shard{0}, Shard{1}};
      if (!flat) single.push_back(Replicate{});
      const DeviceMesh on = flat ? mesh.flatten_cp() : mesh;
      const auto index = [&](const Tensor& t) { return Var::constant(distribute(t, on, single)); };
      Tape tape;
      const Var z =
          tape.input("z", zeros({b, rows, cols}, DType::f64, mesh, pair_placements()), true);
      const Var y = outer_gather(z, index(n), index(m), 1);
      CHECK(y.value().mesh() == on);
      CHECK(y.value().placements() == single);
      const Tensor ones = Tensor::full(y.value().shape(), 1, DType::f64);
      mesh.clear_records();
      tape.backward(y, distribute(ones, on, single));
      for (const CommRecord& record : mesh.records()) CHECK(record.axis == (flat ? "cp" : "cp0"));
      CHECK(z.grad().mesh() == mesh);
      CHECK(to_values(full_tensor(z.grad())) == to_values(expected));
    }
  });
}

TEST_CASE("outer gather: the values are those of both indices") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t b = mesh.size(kDp), rows = 2 * mesh.size(kCp0), cols = 3 * mesh.size(kCp1);
    const Tensor z = draw.values({b, rows, cols, 2}, -1, 1);
    const Tensor n = draw.integers({b, rows, 2}, -1, static_cast<int>(rows));  // -1: nothing
    const Tensor m = draw.integers({b, rows, 3}, -1, static_cast<int>(cols));
    const auto single = [&](const Tensor& t) {
      return Var::constant(distribute(t, mesh, single_placements()));
    };
    const Var y = outer_gather(Var::constant(distribute(z, mesh, pair_placements())), single(n),
                               single(m), 1);
    const std::vector<double> found = to_values(full_tensor(y.value()));
    std::vector<double> expected;
    for (std::int64_t i = 0; i < b; ++i)
      for (std::int64_t k = 0; k < rows; ++k)
        for (std::int64_t w = 0; w < 2; ++w)
          for (std::int64_t h = 0; h < 3; ++h)
            for (std::int64_t c = 0; c < 2; ++c) {
              const auto row = static_cast<std::int64_t>(n.item({i, k, w}));
              const auto col = static_cast<std::int64_t>(m.item({i, k, h}));
              expected.push_back(row < 0 || col < 0 ? 0 : z.item({i, row, col, c}));
            }
    CHECK(found == expected);
  });
}

TEST_CASE("outer gather: one plan serves several calls and dtypes, also transposed views") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t b = mesh.size(kDp);
    const std::int64_t n = 2 * mesh.size(kCp0) * mesh.size(kCp1);
    const Operand z{draw.values({b, n, n, 2}, -1, 1), pair_placements()};
    const Operand u{draw.values({b, n, n}, -1, 1, DType::f32), pair_placements()};
    const Operand idx{draw.integers({b, n, 2}, 0, static_cast<int>(n)), single_placements(), false};
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const OuterGatherPlan plan = outer_gather_plan(in[2], in[2], 1, n, n);
          return Vars{outer_gather(in[0], plan), outer_gather(in[1], plan)};
        },
        {z, u, idx}, 0);
    const DTensor x = distribute(z.full, mesh, z.placements);
    const DTensor turned =
        DTensor::from_local(x.local().transpose(1, 2).contiguous().transpose(1, 2), mesh,
                            x.placements(), x.shape(), {n * n * 2, 2, n * 2, 1});
    const Var i = Var::constant(distribute(idx.full, mesh, idx.placements));
    const auto result = [&](const DTensor& t) {
      return outer_gather(Var::constant(t), i, i, 1).value().local();
    };
    CHECK(bitwise_equal(result(x), result(turned)));
  });
}

TEST_CASE("outer gather: what is refused, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  const Placements single{Shard{0}, Shard{1}, Replicate{}};
  const auto var = [&](const Shape& shape, DType dtype, const Placements& placements) {
    return Var::constant(zeros(shape, dtype, mesh, placements));
  };
  const Var idx = var({n, n, 2}, DType::i64, single);
  const OuterGatherPlan plan = outer_gather_plan(idx, idx, 1, n, n);
  int accepted = 0, accepted_indices = 0;
  for (const Placements& placements : every_placement(3)) {
    const Var z = var({n, n, n, 2}, DType::f64, placements);
    const Var other = var({n, n, n}, DType::i64, placements);
    INFO(format(placements));
    if (placements == pair_placements()) {
      ++accepted;
      CHECK(outer_gather(z, plan).value().placements() == single);
    } else {
      require_error<PlacementError>([&] { outer_gather(z, plan); }, "outer_gather", "'z'",
                                    format(placements), "(S0,S1,S2)", "redistribute");
    }
    const bool fits = (!is_shard(placements[kDp]) || is_shard(placements[kDp], 0)) &&
                      is_shard(placements[kCp0], 1) && !is_shard(placements[kCp1]);
    const auto make = [&] { outer_gather_plan(other, other, 1, n, n); };
    if (!fits) {
      require_error<PlacementError>(make, "outer_gather_plan", "'idx_n'", format(placements),
                                    "redistribute");
    } else if (has_partial(placements)) {
      require_error<PartialError>(make, "outer_gather_plan", "'idx_n'", "Partial");
    } else {
      ++accepted_indices;
      CHECK_NOTHROW(make());
    }
  }
  CHECK(accepted == 1);
  CHECK(accepted_indices == 2);
}

TEST_CASE("outer gather: other errors") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  const auto var = [&](const Shape& shape, DType dtype, const Placements& placements,
                       double value = 0) {
    return Var::constant(distribute(Tensor::full(shape, value, dtype), mesh, placements));
  };
  const auto index = [&](const Shape& shape, double value = 0) {
    return var(shape, DType::i64, single_placements(), value);
  };
  const Var z = var({n, n, n, 2}, DType::f64, pair_placements());
  const Var i = index({n, n, 2}), mask = var({n, n, 2}, DType::boolean, single_placements());
  require_error<ShapeError>([&] { outer_gather(z, i, index({n, 2 * n, 2}), 1); }, "'idx_m'");
  require_error<ShapeError>([&] { outer_gather(z, index({n, n}), index({n, n}), 1); }, "'idx_n'");
  require_error<ShapeError>([&] { outer_gather(z, i, index({n, n, 3}), 1, {}, mask); }, "'mask_m'");
  require_error<ShapeError>([&] { outer_gather(z, outer_gather_plan(i, i, 1, n, 2 * n)); },
                            "outer_gather", "'z'", "24");
  require_error<TypeError>(
      [&] {
        outer_gather(z, var({n, n, 2}, DType::f64, single_placements()), i, 1);
      },
      "'idx_n'");
  require_error<TypeError>([&] { outer_gather(z, i, i, 1, i); }, "'mask_n'", "bool");
  require_error<RangeError>(
      [&] {
        outer_gather(z, i, index({n, n, 2}, n), 1);
      },
      "'idx_m'", "12", "0..11");
  require_error<RangeError>([&] { outer_gather(z, i, i, 4); }, "outer_gather");
  if (mesh.size(kCp0) > 1)
    require_error<UnevenError>([&] { outer_gather_plan(i, i, 1, 7, n); }, "7 x 12");
}

TEST_CASE("outer gather on the flat mesh: what is refused") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const DeviceMesh flat = mesh.flatten_cp(),
                   other = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  const auto index = [&](const DeviceMesh& on, const Placements& placements) {
    return Var::constant(zeros({n, n, n}, DType::i64, on, placements));
  };
  const auto pair = [&](const DeviceMesh& on, const Placements& placements) {
    return Var::constant(zeros({n, n, n, 2}, DType::f64, on, placements));
  };
  const Placements single{Shard{0}, Shard{1}};
  const Var idx = index(flat, single), z = pair(mesh, pair_placements());
  const OuterGatherPlan plan = outer_gather_plan(idx, idx, 1, n, n);
  CHECK(outer_gather(z, plan).value().mesh() == flat);

  // The indices' mesh is that of z or its flat view, nothing else.
  for (const Var& foreign : {pair(other, pair_placements()), pair(flat, single)}) {
    require_error<MeshError>([&] { outer_gather(foreign, plan); }, "outer_gather", "'z'", "mesh");
    require_error<MeshError>([&] { outer_gather(foreign, idx, idx, 1); }, "'z'", "cp0=");
  }
  require_error<MeshError>(
      [&] { outer_gather_plan(idx, index(mesh, single_placements()), 1, n, n); }, "'idx_m'", "cp=");
  require_error<MeshError>(
      [&] {
        outer_gather_plan(
            idx, idx, 1, n, n,
            Var::constant(zeros({n, n, n}, DType::boolean, mesh, single_placements())));
      },
      "'mask_n'", "cp=");

  int accepted = 0;
  for (const Placements& three : every_placement(3)) {
    if (!is_replicate(three.back())) continue;
    const Placements placements{three[0], three[1]};
    const Var i = index(flat, placements);
    INFO(format(placements));
    const auto make = [&] { outer_gather_plan(i, i, 1, n, n); };
    const bool fits = (!is_shard(three[0]) || is_shard(three[0], 0)) && is_shard(three[1], 1);
    if (!fits) {
      require_error<PlacementError>(make, "outer_gather_plan", "'idx_n'", format(placements),
                                    "(S of a batch dim or R, S(dim))", "redistribute");
    } else if (is_partial(three[0])) {
      require_error<PartialError>(make, "outer_gather_plan", "'idx_n'", "Partial");
    } else {
      ++accepted;
      CHECK_NOTHROW(make());
    }
  }
  CHECK(accepted == 2);
}

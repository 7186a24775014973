// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Gathers and scatters by global index on random shapes, placements, meshes, indices and masks.
#include <algorithm>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/errors.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/gather.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

// x [*batch, size, *features], indices [*batch, *positions] into it.
struct Problem {
  int dim = 0;
  Placements placements;
  Operand x, src, idx, mask;
};

enum class Masked { random, second_half, all };

Tensor draw_mask(Draw& draw, const Shape& shape, int dim, Masked masked) {
  if (masked == Masked::random) return draw.booleans(shape);
  const Tensor mask = Tensor::zeros(shape, DType::boolean);
  if (masked == Masked::second_half)
    fill(mask.narrow(dim, 0, shape[static_cast<std::size_t>(dim)] / 2), 1);
  return mask;
}

// `single`: one element of x and one position for each rank of the axis.
Problem draw_problem(const DeviceMesh& mesh, Draw& draw, Masked masked, bool single = false) {
  Problem p;
  p.dim = draw.below(3);
  const int axis = draw.below(3);
  std::vector<int> later;
  for (int d = p.dim; d < 4; ++d) later.push_back(d);
  p.placements = draw.placements(mesh, 4, later);
  p.placements[static_cast<std::size_t>(axis)] = Shard{p.dim};
  const Shape batch = draw.shape(mesh, p.placements, p.dim);
  const auto shape_of = [&](std::vector<std::int64_t> rest) {
    Shape shape = batch;
    shape.insert(shape.end(), rest.begin(), rest.end());
    return shape;
  };
  const std::int64_t ranks = mesh.size(axis);
  const std::int64_t size = ranks * (single ? 1 : 1 + draw.below(4));
  const std::int64_t count = ranks * (single ? 1 : 1 + draw.below(4));
  std::vector<std::int64_t> positions{count}, rows{size};
  if (draw.below(2) == 0) positions.push_back(1 + draw.below(3));
  const Shape indices = shape_of(positions);
  for (int k = draw.below(3); k > 0; --k) {
    positions.push_back(1 + draw.below(3));
    rows.push_back(positions.back());
  }
  p.x = {draw.values(shape_of(rows), -1, 1), p.placements};
  p.src = {draw.values(shape_of(positions), -1, 1), p.placements};
  p.idx = {draw.integers(indices, 0, static_cast<int>(size)), p.placements, false};
  p.mask = {draw_mask(draw, indices, p.dim, masked), p.placements, false};
  return p;
}

}  // namespace

TEST_CASE("gather: forward exact, gradients complete") {
  for (const Masked masked : {Masked::random, Masked::second_half, Masked::all})
    on_all_meshes(8, [&](const DeviceMesh& mesh, Draw& draw) {
      const Problem p = draw_problem(mesh, draw, masked);
      const auto with_mask = [&](const Vars& in) {
        return Vars{gather(in[0], in[1], p.dim, in[2])};
      };
      Operand still = p.x;
      still.differentiable = false;
      check_against_serial(mesh, with_mask, {still, p.idx, p.mask}, 0);
      check_against_serial(mesh, with_mask, {p.x, p.idx, p.mask}, 1e-13);
      check_against_serial(
          mesh, [&](const Vars& in) { return Vars{gather(in[0], in[1], p.dim)}; }, {p.x, p.idx},
          1e-13);
    });
}

TEST_CASE("gather: one element for each rank") {
  on_all_meshes(8, [&](const DeviceMesh& mesh, Draw& draw) {
    const Problem p = draw_problem(mesh, draw, Masked::random, true);
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{gather(in[0], in[1], p.dim, in[2])}; },
        {p.x, p.idx, p.mask}, 1e-13);
  });
}

TEST_CASE("gather: the values are those of the index") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * mesh.size(kCp0), b = mesh.size(kDp);
    const Tensor x = draw.values({b, n, 2}, -1, 1);
    const Tensor idx = draw.integers({b, n}, -1, static_cast<int>(n));  // -1: nothing
    const Var y = gather(Var::constant(distribute(x, mesh, single_placements())),
                         Var::constant(distribute(idx, mesh, single_placements())), 1);
    const Tensor full = full_tensor(y.value());
    for (std::int64_t i = 0; i < b; ++i)
      for (std::int64_t k = 0; k < n; ++k)
        for (std::int64_t c = 0; c < 2; ++c) {
          const auto index = static_cast<std::int64_t>(idx.item({i, k}));
          CHECK(full.item({i, k, c}) == (index < 0 ? 0 : x.item({i, index, c})));
        }
  });
}

TEST_CASE("scatter: sums and means") {
  for (const Masked masked : {Masked::random, Masked::second_half, Masked::all})
    on_all_meshes(8, [&](const DeviceMesh& mesh, Draw& draw) {
      const Problem p = draw_problem(mesh, draw, masked, draw.below(4) == 0);
      const std::int64_t size = p.x.full.size(p.dim);
      for (const ReduceOp reduction : {ReduceOp::sum, ReduceOp::avg})
        check_against_serial(
            mesh,
            [&](const Vars& in) {
              const GatherPlan plan = gather_plan(in[1], p.dim - in[1].value().ndim(), size, in[2]);
              return Vars{scatter_reduce(in[0], plan, reduction)};
            },
            {p.src, p.idx, p.mask}, 1e-13);
    });
}

TEST_CASE("scatter: means are over all ranks, and zero where nothing comes") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 3 * mesh.size(kCp0), b = mesh.size(kDp);
    const Tensor src = draw.values({b, n, 1}, -1, 1);
    const Tensor idx = draw.integers({b, n}, 0, static_cast<int>(n));
    const auto mean_of = [&](std::int64_t i, std::int64_t row) {
      double sum = 0;
      int count = 0;
      for (std::int64_t k = 0; k < n; ++k)
        if (idx.item({i, k}) == static_cast<double>(row)) sum += src.item({i, k, 0}), ++count;
      return count == 0 ? 0 : sum / count;
    };
    const Var y = scatter_reduce(Var::constant(distribute(src, mesh, single_placements())),
                                 Var::constant(distribute(idx, mesh, single_placements())), 1, 3,
                                 ReduceOp::avg);
    const Tensor full = full_tensor(y.value());
    for (std::int64_t i = 0; i < b; ++i)
      for (std::int64_t row = 0; row < n; ++row)
        CHECK(std::abs(full.item({i, row, 0}) - mean_of(i, row)) < 1e-14);
  });
}

TEST_CASE("one plan serves several calls, dtypes and copies of the batch") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * mesh.size(kCp0), b = 2 * mesh.size(kDp);
    const Operand x{draw.values({b, n, 3}, -1, 1), single_placements()};
    const Operand z{draw.values({3 * b, n}, -1, 1, DType::f32), single_placements()};
    const Operand idx{draw.integers({b, n, 2}, 0, static_cast<int>(n)), single_placements(), false};
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const GatherPlan plan = gather_plan(in[2], 1, n);
          const Var y = gather(in[1], plan);
          return Vars{gather(in[0], plan), y, scatter_reduce(y, plan, ReduceOp::avg)};
        },
        {x, z, idx}, 1e-6);
  });
}

TEST_CASE("operands that are transposed views") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * mesh.size(kCp0), b = 2 * mesh.size(kDp);
    const DTensor x = distribute(draw.values({b, n, 3}, -1, 1), mesh, single_placements());
    const DTensor idx =
        distribute(draw.integers({b, n}, 0, static_cast<int>(n)), mesh, single_placements());
    const auto swapped = [](const DTensor& t) {
      Strides strides = row_major_strides({t.size(1), t.size(0), t.ndim() > 2 ? t.size(2) : 1});
      std::swap(strides[0], strides[1]);
      strides.resize(static_cast<std::size_t>(t.ndim()));
      return DTensor::from_local(t.local().transpose(0, 1).contiguous().transpose(0, 1), t.mesh(),
                                 t.placements(), t.shape(), strides);
    };
    const auto result = [](const DTensor& u, const DTensor& i) {
      const GatherPlan plan = gather_plan(Var::constant(i), 1, u.size(1));
      const Var y = gather(Var::constant(u), plan);
      return scatter_reduce(y, plan, ReduceOp::avg).value().local();
    };
    CHECK(bitwise_equal(result(x, idx), result(swapped(x), swapped(idx))));
  });
}

TEST_CASE("indices that stay in their shard send nothing") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int axis = draw.below(3);
    Placements placements(3, Replicate{});
    placements[static_cast<std::size_t>(axis)] = Shard{0};
    const std::int64_t own = 1 + draw.below(3), n = own * mesh.size(axis);
    std::vector<double> values;
    for (std::int64_t k = 0; k < 2 * n; ++k)
      values.push_back(
          static_cast<double>(k / (2 * own) * own + draw.below(static_cast<int>(own))));
    const Operand idx{Tensor::from_values({2 * n}, values, DType::i64), placements, false};
    const Operand x{draw.values({n, 3}, -1, 1), placements};
    check_against_serial(
        mesh,
        [&](const Vars& in) {
          const GatherPlan plan = aligned_plan(in[1], 0, n);
          const std::size_t before = in[0].value().mesh().records().size();
          const Vars out{scatter_reduce(gather(in[0], plan), plan, ReduceOp::avg)};
          CHECK(in[0].value().mesh().records().size() == before);
          return out;
        },
        {x, idx}, 1e-13);
    if (mesh.size(axis) == 1) return;
    const Tensor far = Tensor::full({2 * n}, static_cast<double>(n - 1), DType::i64);
    require_error<RangeError>(
        [&] { aligned_plan(Var::constant(distribute(far, mesh, placements)), 0, n); },
        "leaves the shard", "'idx'", "gather_plan");
  });
}

TEST_CASE("what is refused, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  const Shape shape{n, n, n};
  int accepted = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor idx = zeros(shape, DType::i64, mesh, placements);
    const DTensor x = zeros({n, n, n, 2}, DType::f64, mesh, placements);
    INFO(format(placements));
    const auto sharded = [&](int dim) { return shards(placements, dim); };
    const auto call = [&] { return gather(Var::constant(x), Var::constant(idx), 1); };
    if (!sharded(1) || sharded(2)) {
      require_error<PlacementError>(call, "gather", "'idx'", format(placements), "redistribute");
    } else if (has_partial(placements)) {
      require_error<PartialError>(call, "gather_plan", "'idx'", "Partial");
    } else {
      ++accepted;
      CHECK(call().value().shape() == Shape{n, n, n, n, 2});
      for (const Placements& others : every_placement(2)) {
        if (others == placements) continue;
        const DTensor y = zeros({n, n, n}, DType::f64, mesh, others);
        const GatherPlan plan = gather_plan(Var::constant(idx), 1, n);
        require_error<PlacementError>([&] { gather(Var::constant(y), plan); }, "gather", "'x'",
                                      format(others), "redistribute");
        require_error<PlacementError>(
            [&] { scatter_reduce(Var::constant(y), plan, ReduceOp::sum); }, "scatter_reduce",
            "'src'", format(others), "redistribute");
      }
    }
  }
  CHECK(accepted == 9);  // each axis with S(1), and R or once S(0) on the others
}

TEST_CASE("other errors") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Placements rows{Replicate{}, Shard{0}, Replicate{}};
  const auto var = [&](const Shape& shape, DType dtype, double value = 0) {
    return Var::constant(distribute(Tensor::full(shape, value, dtype), mesh, rows));
  };
  const std::int64_t n = 12;
  const Var x = var({n, 2}, DType::f64), idx = var({n}, DType::i64);
  require_error<TypeError>([&] { gather(x, var({n}, DType::f64), 0); }, "gather", "'idx'", "i64");
  require_error<TypeError>([&] { gather(x, idx, 0, var({n}, DType::f64)); }, "'mask'", "bool");
  require_error<ShapeError>([&] { gather(x, idx, 0, var({2 * n}, DType::boolean)); }, "'mask'");
  require_error<RangeError>([&] { gather(x, idx, 2); }, "gather");
  require_error<RangeError>([&] { gather(x, var({n}, DType::i64, 12), 0); }, "'idx'", "12",
                            "0..11");
  require_error<RangeError>([&] { gather(x, var({n}, DType::i64, -2), 0); }, "'idx'", "-2");
  const GatherPlan plan = gather_plan(idx, 0, n);
  require_error<ShapeError>(
      [&] {
        gather(var({2 * n, 2}, DType::f64), plan);
      },
      "gather", "'x'", "[24, 2]", "[12, 2]");
  require_error<ShapeError>([&] { scatter_reduce(var({2 * n}, DType::f64), plan, ReduceOp::sum); },
                            "scatter_reduce", "'src'");
  require_error<UnsupportedError>([&] { scatter_reduce(x, plan, ReduceOp::max); }, "max", "sum");
  require_error<TypeError>([&] { scatter_reduce(idx, plan, ReduceOp::sum); }, "'src'", "floating");
  const DeviceMesh other = DeviceMesh::create(test_world(), squarest(test_ranks()));
  require_error<MeshError>(
      [&] {
        gather(Var::constant(zeros({n, 2}, DType::f64, other, rows)), plan);
      },
      "gather", "'x'");
  if (mesh.size(kCp0) > 1)
    require_error<UnevenError>([&] { gather_plan(idx, 0, 7); }, "gather_plan", "7");
}

TEST_CASE("an index out of range on one rank only throws on all") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Placements rows{Replicate{}, Shard{0}, Replicate{}};
  const std::int64_t n = 12;
  const Tensor values = Tensor::zeros({n}, DType::i64);
  fill(values.narrow(0, n - 1, 1), static_cast<double>(n));
  const Var idx = Var::constant(distribute(values, mesh, rows));
  require_error<RangeError>([&] { gather_plan(idx, 0, n); }, "gather_plan", "'idx'", "12");
  const Tensor mask = Tensor::full({n}, 1, DType::boolean);
  fill(mask.narrow(0, n - 1, 1), 0);
  CHECK_NOTHROW(gather_plan(idx, 0, n, Var::constant(distribute(mask, mesh, rows))));
}

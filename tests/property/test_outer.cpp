// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Pairs of singles and pairs along whole dims, on random shapes, placements and meshes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/outer.hpp"
#include "tessera/layers/substrate/redistribute.hpp"
#include "tessera/layers/substrate/reduce.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

const std::vector<Outer> kWithGradient{Outer::sum, Outer::subtract, Outer::multiply, Outer::cdist};

Shape draw_single(const DeviceMesh& mesh, Draw& draw) {
  Shape shape{(1 + draw.below(2)) * mesh.size(kDp),
              (1 + draw.below(3)) * std::lcm(mesh.size(kCp0), mesh.size(kCp1))};
  for (int d = 1 + draw.below(2); d > 0; --d) shape.push_back(1 + draw.below(3));
  return shape;
}

Tensor full(const Var& y) {
  return full_tensor(y.value()).to(DType::f64);
}

}  // namespace

TEST_CASE("pairs of singles and their gradients") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const Shape shape = draw_single(mesh, draw);
    const Operand x{draw.values(shape, -1, 1), single_placements()};
    const Operand t{draw.values(shape, -1, 1), single_placements()};
    const Operand constant{t.full, t.placements, false};
    for (const Outer op : kWithGradient) {
      const auto one = [&](const Vars& in) { return Vars{outer_op(in[0], op)}; };
      const auto two = [&](const Vars& in) { return Vars{outer_op(in[0], in[1], op)}; };
      const auto turned = [&](const Vars& in) { return Vars{outer_op(in[1], in[0], op)}; };
      check_against_serial(mesh, one, {x}, 1e-12);
      check_against_serial(mesh, two, {x, t}, 1e-12);
      check_against_serial(mesh, two, {x, constant}, 1e-12);
      check_against_serial(mesh, turned, {x, constant}, 1e-12);
      check_against_serial(mesh, two, {constant, constant}, 0);
    }
  });
}

TEST_CASE("pairs of mixed dtypes, of integers and of booleans") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const Shape shape = draw_single(mesh, draw);
    const Placements placements = single_placements();
    const auto multiply = [](const Vars& in) {
      return Vars{outer_op(in[0], in[1], Outer::multiply)};
    };
    check_against_serial(mesh, multiply,
                         {{draw.values(shape, -1, 1, DType::bf16), placements},
                          {draw.values(shape, -1, 1, DType::f32), placements}},
                         1e-6);
    for (const Outer op : {Outer::equal, Outer::bit_and}) {
      const auto test = [&](const Vars& in) { return Vars{outer_op(in[0], in[1], op)}; };
      check_against_serial(mesh, test,
                           {{draw.integers(shape, 0, 4), placements, false},
                            {draw.integers(shape, 0, 4), placements, false}},
                           0);
      check_against_serial(
          mesh, [&](const Vars& in) { return Vars{outer_op(in[0], op)}; },
          {{draw.booleans(shape), placements, false}}, 0);
    }
  });
}

TEST_CASE("each pair is what it says") {
  on_all_meshes(2, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = std::lcm(mesh.size(kCp0), mesh.size(kCp1));
    const Tensor x = draw.integers({mesh.size(kDp), n, 2}, 0, 4);
    const Tensor t = draw.integers(x.shape(), 0, 4);
    const auto on_mesh = [&](const Tensor& whole, DType dtype) {
      return Var::constant(distribute(whole.to(dtype), mesh, single_placements()));
    };
    const auto result = [&](Outer op, DType dtype) {
      return full(outer_op(on_mesh(x, dtype), on_mesh(t, dtype), op));
    };
    const Tensor difference = result(Outer::subtract, DType::f64);
    const Tensor distance = result(Outer::cdist, DType::f64);
    const Tensor equal = result(Outer::equal, DType::i64);
    const Tensor common = result(Outer::bit_and, DType::i64);
    for (std::int64_t b = 0; b < x.size(0); ++b)
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          double squares = 0;
          for (std::int64_t k = 0; k < 2; ++k) {
            const double l = x.item({b, i, k}), r = t.item({b, j, k});
            squares += (l - r) * (l - r);
            CHECK(difference.item({b, i, j, k}) == l - r);
            CHECK(equal.item({b, i, j, k}) == (l == r ? 1 : 0));
            CHECK(common.item({b, i, j, k}) == (int(l) & int(r)));
          }
          CHECK(distance.item({b, i, j}) == std::sqrt(squares));
        }
  });
}

TEST_CASE("a distance of zero has no gradient, whatever arrives") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 2 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
  for (const DType dtype : {DType::f64, DType::f32}) {
    Tape tape;
    const Tensor same = Tensor::full({1, n, 3}, 2, dtype);
    const Var x = tape.input("x", distribute(same, mesh, single_placements()), true);
    const Var y = outer_op(x, Outer::cdist);
    const Tensor large = Tensor::full({1, n, n}, 1e30, dtype);
    tape.backward(y, distribute(large, mesh, pair_placements()));
    for (const double value : to_values(x.grad().local())) CHECK(value == 0);
  }
}

TEST_CASE("pairs along whole dims") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const int axis = draw.below(ndim);
    const Placements placements = draw.placements(mesh, ndim, {axis});
    const Shape x = draw.shape(mesh, placements, ndim);
    Shape y = x;
    y[std::size_t(axis)] = 1 + draw.below(4);
    for (const ShardwiseOuter op : {ShardwiseOuter::subtract, ShardwiseOuter::add,
                                    ShardwiseOuter::logical_and, ShardwiseOuter::equal}) {
      const auto pairs = [&](const Vars& in) {
        return Vars{shardwise_outer(in[0], in[1], axis - ndim, op)};
      };
      const bool test = op == ShardwiseOuter::logical_and || op == ShardwiseOuter::equal;
      if (test)
        check_against_serial(mesh, pairs,
                             {{draw.integers(x, 0, 2), placements, false},
                              {draw.integers(y, 0, 2), placements, false}},
                             0);
      else
        check_against_serial(
            mesh, pairs, {{draw.values(x, -1, 1), placements}, {draw.values(y, -1, 1), placements}},
            0);
    }
  });
}

TEST_CASE("operands that are transposed views, of pairs") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  Draw draw(5);
  const std::int64_t n = 2 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
  const DTensor plain = distribute(draw.values({2, n, 3}, -1, 1), mesh, single_placements());
  const DTensor view = DTensor::from_local(plain.local().transpose(0, 2).clone().transpose(0, 2),
                                           mesh, plain.placements(), plain.shape(), {1, 2, 2 * n});
  const auto values = [](const Var& y) { return to_values(y.value().local()); };
  for (const Outer op : kWithGradient)
    CHECK(values(outer_op(Var::constant(view), op)) == values(outer_op(Var::constant(plain), op)));
  const auto pairs = [&](const DTensor& x) {
    return values(shardwise_outer(Var::constant(x), Var::constant(x), 2, ShardwiseOuter::add));
  };
  CHECK(pairs(view) == pairs(plain));
}

TEST_CASE("which placements of pairs are refused") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Var good = Var::constant(zeros({12, 12, 12}, DType::f64, mesh, single_placements()));
  int accepted = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = zeros({12, 12, 12}, DType::f64, mesh, placements);
    const std::string found = format(placements);
    INFO(found);
    const Var v = Var::constant(x);
    if (placements == single_placements()) {
      CHECK_NOTHROW(outer_op(v, good, Outer::sum));
    } else {
      require_error<PlacementError>([&] { outer_op(v, Outer::sum); }, "outer_op", "'x'", found);
      require_error<PlacementError>([&] { outer_op(v, good, Outer::equal); }, "outer_op", "'x'",
                                    found);
      require_error<PlacementError>([&] { outer_op(good, v, Outer::sum); }, "outer_op", "'x_t'",
                                    found);
    }
    const bool partial = has_partial(placements);
    const bool sharded = shards(placements, 1);
    const auto pairs = [&] { shardwise_outer(v, v, 1, ShardwiseOuter::add); };
    if (sharded)
      require_error<PlacementError>(pairs, "shardwise_outer", "'x'", found, "redistribute");
    else if (partial)
      require_error<PartialError>(pairs, "shardwise_outer", "'x'", found);
    else
      CHECK_NOTHROW(pairs());
    if (sharded || partial) continue;
    ++accepted;
    const Var other = Var::constant(zeros({12, 12, 12}, DType::f64, mesh, replicated_placements()));
    if (placements != replicated_placements())
      require_error<PlacementError>([&] { shardwise_outer(v, other, 1, ShardwiseOuter::equal); },
                                    "shardwise_outer", "'y'", "redistribute");
  }
  CHECK(accepted > 5);
}

TEST_CASE("other refusals of pairs") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const auto single = [&](const Shape& shape, DType dtype) {
    return Var::constant(zeros(shape, dtype, mesh, single_placements()));
  };
  const Var x = single({1, 12, 3}, DType::f64);
  // Of axis 0 the shape rule would not hold.
  require_error<RangeError>([&] { outer_op(x, Outer::sum, 0); }, "outer_op", "'x'", "axis 0");
  require_error<RangeError>([&] { outer_op(x, Outer::sum, 3); }, "outer_op");
  require_error<ShapeError>(
      [&] {
        outer_op(x, single({1, 24, 3}, DType::f64), Outer::sum);
      },
      "outer_op", "'x_t'", "[1, 24, 3]");
  require_error<ShapeError>(
      [&] {
        outer_op(single({1, 12}, DType::f64), Outer::cdist);
      },
      "outer_op", "'x'", "coordinates");
  require_error<TypeError>([&] { outer_op(x, Outer::bit_and); }, "outer_op", "'x'", "bitwise");
  const Var whole = Var::constant(zeros(x.value().shape(), DType::i64, mesh, single_placements()));
  require_error<TypeError>([&] { outer_op(x, whole, Outer::cdist); }, "outer_op", "'x_t'", "i64");
  require_error<ShapeError>(
      [&] {
        shardwise_outer(x, single({1, 24, 3}, DType::f64), 2, ShardwiseOuter::add);
      },
      "shardwise_outer", "'y'", "[1, 24, 3]");
  require_error<RangeError>([&] { shardwise_outer(x, x, 3, ShardwiseOuter::add); },
                            "shardwise_outer");
  if (mesh.size(kCp0) == mesh.size(kCp1)) return;
  const Var uneven = single({1, mesh.size(kCp0), 3}, DType::f64);
  require_error<UnevenError>([&] { outer_op(uneven, Outer::sum); }, "outer_op", "x");
}

// The divisor of an outer product mean: how many rows of an alignment hold both tokens of a pair.
// That differs from pair to pair as soon as rows have gaps.
TEST_CASE("the rows that two tokens share are counted for each pair") {
  on_all_meshes(2, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 4 * std::lcm(mesh.size(kCp0), mesh.size(kCp1));
    const std::int64_t depth = 6 * mesh.size(kCp0);
    const std::int64_t batch = mesh.size(kDp);
    const Tensor mask = draw.booleans({batch, depth, n}).to(DType::f64);
    const Var m = Var::constant(distribute(mask, mesh, pair_placements()));
    const Var whole = local_transpose(replicate(replicate(m, kCp0), kCp1), 1, 2);
    const Var both = outer_op(shard(whole, kCp0, 1), Outer::multiply);
    const Var count = maximum(1.0, shardwise_sum(both, -1));
    CHECK(count.value().placements() == pair_placements());

    const std::vector<double> found = to_values(full_tensor(count.value()));
    bool differs = false;
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          double rows = 0, of_first = 0;
          for (std::int64_t s = 0; s < depth; ++s) {
            rows += mask.item({b, s, i}) * mask.item({b, s, j});
            of_first += mask.item({b, s, 0});
          }
          const auto at = static_cast<std::size_t>((b * n + i) * n + j);
          REQUIRE(found[at] == std::max(1.0, rows));
          differs = differs || found[at] != std::max(1.0, of_first);
        }
    CHECK(differs);
  });
}

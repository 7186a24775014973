// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Reductions on random shapes, placements and meshes, on special values, and what they refuse.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "tessera/layers/substrate/reduce.hpp"
#include "tessera/layers/substrate/softmax.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A random tensor and one of its dims that no axis shards.
struct Drawn {
  Placements placements;
  Shape shape;
  int dim;
};
Drawn draw_whole_dim(const DeviceMesh& mesh, Draw& draw) {
  const int ndim = 1 + draw.below(4);
  const int dim = draw.below(ndim);
  const Placements placements = draw.placements(mesh, ndim, {dim});
  Shape shape = draw.shape(mesh, placements, ndim);
  shape[static_cast<std::size_t>(dim)] = 1 + draw.below(7);
  return {placements, shape, dim};
}

// Some of the sharded dims, at least one; empty if there is none.
std::vector<int> draw_sharded_dims(const Placements& placements, Draw& draw) {
  std::vector<int> sharded;
  for (const Placement& p : placements)
    if (is_shard(p)) sharded.push_back(std::get<Shard>(p).dim);
  if (sharded.empty()) return {};
  std::vector<int> dims{sharded[static_cast<std::size_t>(draw.below(int(sharded.size())))]};
  for (const int dim : sharded)
    if (dim != dims[0] && draw.below(2) == 0) dims.push_back(dim);
  return dims;
}

Var on_rank(const std::vector<double>& values, DType dtype = DType::f64) {
  const Tensor full = Tensor::from_values({std::int64_t(values.size())}, values, dtype);
  const DeviceMesh mesh = DeviceMesh::serial();
  return Var::constant(distribute(full, mesh, {Replicate{}, Replicate{}, Replicate{}}));
}

std::vector<double> result(const Var& y) {
  return to_values(y.value().local());
}

struct Named {
  const char* name;
  std::function<Var(const Var& x, int dim)> call;
};
const std::vector<Named>& shardwise() {
  static const std::vector<Named> all{
      {"shardwise_sum", [](const Var& x, int d) { return shardwise_sum(x, d); }},
      {"shardwise_mean", [](const Var& x, int d) { return shardwise_mean(x, d); }},
      {"shardwise_max", [](const Var& x, int d) { return shardwise_max(x, d); }},
      {"shardwise_min", [](const Var& x, int d) { return shardwise_min(x, d); }},
      {"shardwise_argmax", [](const Var& x, int d) { return shardwise_argmax(x, d); }},
      {"shardwise_norm", [](const Var& x, int d) { return shardwise_norm(x, d); }},
      {"shardwise_softmax", [](const Var& x, int d) { return shardwise_softmax(x, d); }},
      {"shardwise_log_softmax", [](const Var& x, int d) { return shardwise_log_softmax(x, d); }},
  };
  return all;
}

}  // namespace

TEST_CASE("sums over sharded dims are exact where the numbers are") {
  on_all_meshes(12, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim);
    const Shape shape = draw.shape(mesh, placements, ndim);
    const std::vector<int> dims = draw_sharded_dims(placements, draw);
    if (dims.empty()) return;
    const bool keepdim = draw.below(2) == 0;
    const auto sum = [&](const Vars& in) { return Vars{sharded_sum(in[0], dims, keepdim)}; };
    const Tensor whole = draw.integers(shape, -1000, 1000);
    check_against_serial(mesh, sum, {{whole.to(DType::f64), placements}}, 0);
    check_against_serial(mesh, sum, {{whole, placements, false}}, 0);
    check_against_serial(mesh, sum, {{draw.booleans(shape), placements, false}}, 0);
    check_against_serial(mesh, sum, {{draw.values(shape, -1, 1), placements}}, 1e-12);
  });
}

TEST_CASE("sums over sharded dims of bf16 are rounded once") {
  // 256 + 1 is not a bf16, 256 + 4 * 1 is.
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {test_ranks(), 1, 1});
  std::vector<double> values(std::size_t(4 * test_ranks()), 0);
  values[0] = 256;
  for (std::size_t k = 0; k < 4; ++k) values[values.size() - 1 - k] += 1;
  const Tensor full = Tensor::from_values({std::int64_t(values.size())}, values, DType::bf16);
  const Var x = Var::constant(distribute(full, mesh, {Shard{0}, Replicate{}, Replicate{}}));
  CHECK(sharded_sum(x, {0}).value().local().item() == 260);
}

TEST_CASE("placements of sums over sharded dims") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 6;
  const Var x = Var::constant(zeros({1, n, n}, DType::f64, mesh, pair_placements()));
  CHECK(format(sharded_sum(x, {0, 1, 2}).value().placements()) == "(R,R,R)");
  CHECK(format(sharded_sum(x, {1}).value().placements()) == "(S0,R,S1)");
  CHECK(format(sharded_sum(x, {1}, true).value().placements()) == "(S0,R,S2)");
}

TEST_CASE("reductions within ranks") {
  on_all_meshes(10, [](const DeviceMesh& mesh, Draw& draw) {
    const Drawn d = draw_whole_dim(mesh, draw);
    const bool keepdim = draw.below(2) == 0;
    const int dim = d.dim - (draw.below(2) == 0 ? static_cast<int>(d.shape.size()) : 0);
    const Operand x{draw.values(d.shape, -3, 3), d.placements};
    const auto check = [&](Var (*reduce)(const Var&, int, bool)) {
      check_against_serial(
          mesh, [&](const Vars& in) { return Vars{reduce(in[0], dim, keepdim)}; }, {x}, 0);
    };
    check(shardwise_sum);
    check(shardwise_mean);
    check(shardwise_max);
    check(shardwise_min);
    check(shardwise_argmax);
    check(shardwise_norm);
  });
}

TEST_CASE("softmax, its logarithm and distograms") {
  on_all_meshes(10, [](const DeviceMesh& mesh, Draw& draw) {
    const Drawn d = draw_whole_dim(mesh, draw);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Operand x{draw.values(d.shape, -10, 10, dtype), d.placements};
      const auto softmax = [&](const Vars& in) { return Vars{shardwise_softmax(in[0], d.dim)}; };
      check_against_serial(mesh, softmax, {x}, 0);
      const auto logs = [&](const Vars& in) { return Vars{shardwise_log_softmax(in[0], d.dim)}; };
      check_against_serial(mesh, logs, {x}, 0);
      const auto counts = [](const Vars& in) {
        return Vars{shardwise_distogram(in[0], {-1, 0, 4})};
      };
      check_against_serial(mesh, counts, {{x.full, x.placements, false}}, 0);
    }
  });
}

TEST_CASE("operands that are transposed views") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t n = 2 * mesh.size(kCp0);
    const DTensor plain =
        distribute(draw.values({5, n, 3}, -1, 1), mesh, {Replicate{}, Shard{1}, Replicate{}});
    // The same values, dims 0 and 2 exchanged in memory only.
    const DTensor view = DTensor::from_local(plain.local().transpose(0, 2).clone().transpose(0, 2),
                                             mesh, plain.placements(), {5, n, 3}, {1, 5, 5 * n});
    for (const Named& operation : shardwise()) {
      INFO(operation.name);
      const DTensor y = operation.call(Var::constant(view), 2).value();
      CHECK(result(Var::constant(y)) == result(operation.call(Var::constant(plain), 2)));
      if (y.ndim() == 2) CHECK(y.strides() == Strides{1, 5});
    }
    const DTensor sum = sharded_sum(Var::constant(view), {1}).value();
    CHECK(to_values(sum.local()) == result(sharded_sum(Var::constant(plain), {1})));
    CHECK(sum.strides() == Strides{1, 5});
  });
}

TEST_CASE("special values") {
  CHECK(result(shardwise_argmax(on_rank({1, 3, 3, 2}), 0)) == std::vector<double>{1});
  CHECK(result(shardwise_argmax(on_rank({1, kNaN, 3}), 0)) == std::vector<double>{1});
  CHECK(std::isnan(result(shardwise_max(on_rank({1, kNaN}), 0))[0]));
  CHECK(std::isnan(result(shardwise_min(on_rank({1, kNaN}), 0))[0]));
  CHECK(result(shardwise_softmax(on_rank({0, -kInf}))) == std::vector<double>{1, 0});
  CHECK(result(shardwise_softmax(on_rank({1e9, 1e9}))) == std::vector<double>{0.5, 0.5});
  CHECK(result(shardwise_log_softmax(on_rank({1e9, 1e9 - 1000})))[1] == -1000);
  // Strictly below: an element on an edge does not count it.
  CHECK(result(shardwise_distogram(on_rank({-1, 0, 0.5, 1, 9, kNaN}), {0, 1})) ==
        std::vector<double>{0, 0, 1, 1, 2, 0});
  CHECK(shardwise_argmax(on_rank({1, 2}), 0).value().dtype() == DType::i64);
  CHECK(shardwise_sum(on_rank({1, 0, 1}, DType::boolean), 0).value().local().item() == 2);
}

TEST_CASE("gradients at ties and at zero") {
  const auto gradient = [](const std::vector<double>& values, const auto& reduce) {
    Tape tape;
    const DTensor value = on_rank(values).value();
    const Var x = tape.input("x", value, true);
    const Tensor five = Tensor::full({1}, 5, DType::f64);
    tape.backward(reduce(x, 0, true), distribute(five, value.mesh(), value.placements()));
    return to_values(x.grad().local());
  };
  CHECK(gradient({1, 3, 3}, shardwise_max) == std::vector<double>{0, 5, 0});
  CHECK(gradient({1, 3, 1}, shardwise_min) == std::vector<double>{5, 0, 0});
  CHECK(gradient({0, 0}, shardwise_norm) == std::vector<double>{0, 0});
  CHECK(gradient({3, -4}, shardwise_norm) == std::vector<double>{3, -4});
}

TEST_CASE("offsets make global indices of local ones") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const std::int64_t own = 1 + draw.below(4);
    const int axis = draw.below(3);
    const std::int64_t n = own * mesh.size(axis);
    Placements placements(3, Replicate{});
    placements[static_cast<std::size_t>(axis)] = Shard{1};
    std::vector<double> local, global;
    for (std::int64_t k = 0; k < 2 * n; ++k) {
      global.push_back(double(k % n));
      local.push_back(double(k % own));
    }
    for (const DType dtype : {DType::i64, DType::f64}) {
      const DTensor x = distribute(Tensor::from_values({2, n}, local, dtype), mesh, placements);
      const auto values = [](const Var& y) { return to_values(full_tensor(y.value())); };
      CHECK(values(shardwise_offset(Var::constant(x), -1, double(own))) == global);
      const Tensor step = Tensor::from_values({2, 1}, {double(own), double(own)}, dtype);
      CHECK(values(shardwise_offset(Var::constant(x), 1, step)) == global);
    }
    Tape tape;
    const DTensor value = zeros({2, n}, DType::f64, mesh, placements);
    const Var x = tape.input("x", value, true);
    const DTensor upstream = uniform({2, n}, DType::f64, mesh, placements, {1, 1}, 0, 1);
    tape.backward(shardwise_offset(x, 1, 0.5), upstream);
    CHECK(to_values(x.grad().local()) == to_values(upstream.local()));
  });
}

TEST_CASE("which placements are refused") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const std::int64_t n = 12;
  int accepted = 0, refused = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = zeros({n, n, n}, DType::f64, mesh, placements);
    INFO(format(placements));
    const bool partial = has_partial(placements);
    const bool sharded = shards(placements, 1);
    const Var v = Var::constant(x);
    const std::string found = format(placements);
    for (const Named& operation : shardwise()) {
      INFO(operation.name);
      if (sharded)
        require_error<PlacementError>([&] { operation.call(v, 1); }, operation.name, "'x'", found,
                                      "dim 1 must not be sharded", "redistribute");
      else if (partial)
        require_error<PartialError>([&] { operation.call(v, 1); }, operation.name, "'x'", found);
      else
        CHECK_NOTHROW(operation.call(v, 1));
    }
    const std::vector<Named> of_sharded{
        {"sharded_sum", [](const Var& a, int d) { return sharded_sum(a, {d}); }},
        {"shardwise_offset", [](const Var& a, int d) { return shardwise_offset(a, d, 1); }}};
    for (const Named& operation : of_sharded) {
      INFO(operation.name);
      if (!sharded)
        require_error<PlacementError>([&] { operation.call(v, 1); }, operation.name, "'x'", found,
                                      "dim 1 must be sharded", "shardwise");
      else if (partial)
        require_error<PartialError>([&] { operation.call(v, 1); }, operation.name, "'x'", found);
      else
        CHECK_NOTHROW(operation.call(v, 1));
    }
    if (partial)
      require_error<PartialError>([&] { shardwise_distogram(v, {0}); }, "shardwise_distogram",
                                  found);
    else
      CHECK_NOTHROW(shardwise_distogram(v, {0}));
    ++(partial ? refused : accepted);
  }
  CHECK(accepted > 20);
  CHECK(refused > 20);
}

TEST_CASE("other refusals") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Var x = Var::constant(zeros({1, 6, 6}, DType::f64, mesh, pair_placements()));
  require_error<RangeError>([&] { sharded_sum(x, {}); }, "sharded_sum", "at least one dim");
  require_error<RangeError>([&] { sharded_sum(x, {1, -2}); }, "sharded_sum", "given twice");
  require_error<RangeError>([&] { sharded_sum(x, {3}); }, "sharded_sum");
  require_error<RangeError>([&] { shardwise_sum(x, -4); }, "shardwise_sum");
  const Var index =
      Var::constant(zeros({6, 2}, DType::i64, mesh, {Shard{0}, Replicate{}, Replicate{}}));
  require_error<TypeError>([&] { shardwise_mean(index, 1); }, "shardwise_mean", "'x'", "i64");
  require_error<TypeError>([&] { shardwise_softmax(index); }, "shardwise_softmax", "'x'", "i64");
  require_error<TypeError>([&] { shardwise_offset(index, 0, 0.5); }, "shardwise_offset", "0.5");
  require_error<TypeError>(
      [&] {
        shardwise_offset(index, 0, Tensor::full({1, 1}, 0.5, DType::f64));
      },
      "shardwise_offset", "'offset'", "f64 for i64");
  require_error<ShapeError>(
      [&] {
        shardwise_offset(index, 0, Tensor::zeros({5, 1}, DType::i64));
      },
      "shardwise_offset", "'offset'", "[5, 1]");
}

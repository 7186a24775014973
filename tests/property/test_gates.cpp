// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Gates against what they are made of, and the randomness of dropout across ranks.
#include <cmath>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/elementwise.hpp"
#include "tessera/layers/substrate/gates.hpp"
#include "tessera/layers/substrate/reshape.hpp"
#include "tessera/layers/substrate/sigmoid_gate.hpp"
#include "tessera/mesh/collectives.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

Var composed_swiglu(const Var& x) {
  const Vars halves = chunk(x, 2, -1);
  return multiply(sigmoid_gate(halves[1], halves[1]), halves[0]);
}

// Whether this rank's rows (columns) of a tensor of ones were kept, as text.
std::string decisions(const DeviceMesh& mesh, const Dropout& options) {
  const std::int64_t n = 8 * mesh.size(kCp0) * mesh.size(kCp1);
  const DTensor ones = distribute(Tensor::full({2 * mesh.size(kDp), n, n, 3}, 1, DType::f32), mesh,
                                  pair_placements());
  const Tensor y = dropout(Var::constant(ones), options).value().local();
  const bool rows = options.mask == DropoutMask::rows;
  const Tensor first = rows ? y.narrow(2, 0, 1).narrow(3, 0, 1) : y.narrow(1, 0, 1).narrow(3, 0, 1);
  for (int dim : {rows ? 2 : 1, 3})  // all that share a decision have it
    for (std::int64_t k = 0; k < y.size(dim); ++k) {
      Tensor other = y.narrow(dim, k, 1);
      other = dim == 3 ? other.narrow(rows ? 2 : 1, 0, 1) : other.narrow(3, 0, 1);
      CHECK(to_values(other) == to_values(first));
    }
  std::string text;
  for (const double value : to_values(first)) text += value == 0 ? '-' : '+';
  return text;
}

// Ranks of one sample that hold the same rows (columns) decide alike, all others do not.
bool structured(const DeviceMesh& mesh, const Dropout& options) {
  const std::vector<std::string> all = gather_strings(mesh, decisions(mesh, options));
  bool good = true;
  const int axis = options.mask == DropoutMask::rows ? kCp0 : kCp1;
  for (std::size_t a = 0; a < all.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      const std::vector<int> at_a = mesh.coordinate_of(static_cast<int>(a));
      const std::vector<int> at_b = mesh.coordinate_of(static_cast<int>(b));
      const auto k = static_cast<std::size_t>(axis);
      const bool shared = at_a[kDp] == at_b[kDp] && at_a[k] == at_b[k];
      good = good && shared == (all[a] == all[b]);
    }
  return true_on_all_ranks(good);
}

const Dropout kRows{.p = 0.5, .mask = DropoutMask::rows, .stream = {11, stream_id("test")}};
const Dropout kColumns{.p = 0.5, .mask = DropoutMask::columns, .stream = {11, stream_id("test")}};

}  // namespace

TEST_CASE("gates on all meshes") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim, {ndim - 1});
    Shape shape = draw.shape(mesh, placements, ndim);
    const Operand a{draw.values(shape, -10, 10), placements, draw.below(3) > 0};
    const Operand b{draw.values(shape, -10, 10, DType::f32), placements, draw.below(3) > 0};
    check_against_serial(
        mesh, [](const Vars& in) { return Vars{sigmoid_gate(in[0], in[1])}; }, {a, b}, 0);
    shape.back() *= 2;
    const Operand x{draw.values(shape, -10, 10), placements};
    check_against_serial(
        mesh, [](const Vars& in) { return Vars{swiglu(in[0])}; }, {x}, 0);
  });
}

TEST_CASE("swiglu is chunk, gate and product") {
  Draw draw(4);
  const DeviceMesh mesh = DeviceMesh::serial();
  const DTensor x = distribute(draw.values({3, 5, 8}, -6, 6), mesh, replicated_placements());
  const DTensor g = distribute(draw.values({3, 5, 4}, -1, 1), mesh, replicated_placements());
  std::vector<std::vector<double>> results;
  for (Var (*f)(const Var&) : {swiglu, composed_swiglu}) {
    Tape tape;
    const Var in = tape.input("x", x, true);
    const Var y = f(in);
    tape.backward(y, g);
    results.push_back(to_values(y.value().local()));
    results.push_back(to_values(in.grad().local()));
  }
  for (std::size_t k = 0; k < 2; ++k)
    for (std::size_t i = 0; i < results[k].size(); ++i)
      CHECK(std::abs(results[k][i] - results[k + 2][i]) <= 1e-14);
  // Value first, gate second.
  const Var two = Var::constant(distribute(Tensor::from_values({2, 2}, {2, 1, 1, 2}, DType::f64),
                                           mesh, replicated_placements()));
  check_close(swiglu(two).value().local(), {2 / (1 + std::exp(-1)), 2 / (1 + std::exp(-2))}, 1e-15);
}

TEST_CASE("gates do not ask how operands lie in memory") {
  Draw draw(6);
  const Placements whole = replicated_placements();
  const Operand x{draw.values({3, 4, 5, 6}, -2, 2), whole};
  const Operand g{draw.values({3, 4, 5, 6}, -2, 2), whole};
  check_any_layout([](const Vars& in) { return Vars{sigmoid_gate(in[0], in[1])}; }, {x, g}, 0);
  check_any_layout([](const Vars& in) { return Vars{swiglu(in[0])}; }, {x}, 0);
  check_any_layout([](const Vars& in) { return Vars{dropout(in[0], kRows)}; },
                   {{x.full, pair_placements()}}, 0);
}

TEST_CASE("dropout on every mesh is that of one rank") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const Shape shape = draw.shape(mesh, pair_placements(), 4);
    const Operand x{draw.values(shape, 1, 2, draw.below(2) == 0 ? DType::f64 : DType::bf16),
                    pair_placements()};
    for (Dropout options : {kRows, kColumns}) {
      options.p = draw.uniform(0, 0.9);
      options.stream.seed = static_cast<std::uint64_t>(draw.below(1000));
      check_against_serial(
          mesh, [&](const Vars& in) { return Vars{dropout(in[0], options)}; }, {x}, 0);
    }
    const bool rows = draw.below(2) == 0;
    const Operand samples{
        draw.values({shape[0], rows ? shape[1] : 1, rows ? 1 : shape[2], 1}, 0, 1),
        rows ? Placements{Shard{0}, Shard{1}, Replicate{}}
             : Placements{Shard{0}, Replicate{}, Shard{2}},
        false};
    check_against_serial(
        mesh, [&](const Vars& in) { return Vars{dropout(in[0], rows ? kRows : kColumns, in[1])}; },
        {x, samples}, 0);
  });
}

TEST_CASE("ranks share the mask of a shared row or column, and only that") {
  for (const MeshShape& shape : test_meshes(test_ranks())) {
    const DeviceMesh mesh = DeviceMesh::create(test_world(), shape);
    INFO(format(shape));
    for (const Dropout& options : {kRows, kColumns}) {
      CHECK(structured(mesh, options));
      // The control: a seed of each rank's own, where rows or columns are shared at all.
      const int others = options.mask == DropoutMask::rows ? kCp1 : kCp0;
      Dropout own_seed = options;
      own_seed.stream.seed += static_cast<std::uint64_t>(mesh.rank());
      if (mesh.size(others) > 1) CHECK_FALSE(structured(mesh, own_seed));
    }
  }
}

TEST_CASE("what is kept, how often and how much") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const DTensor x = distribute(Tensor::full({1, 4, 2, 1}, 3, DType::f64), mesh, pair_placements());
  const Var samples =
      Var::constant(distribute(Tensor::from_values({1, 4, 1, 1}, {0.2, 0.25, 0.3, 0}, DType::f64),
                               mesh, {Shard{0}, Shard{1}, Replicate{}}));
  const Var v = Var::constant(x);
  CHECK(to_values(dropout(v, {.p = 0.25}, samples).value().local()) ==
        std::vector<double>{0, 0, 4, 4, 4, 4, 0, 0});
  CHECK(dropout(v, {.p = 0.25, .training = false}).value().local().storage_id() ==
        x.local().storage_id());
  CHECK(to_values(dropout(v, {.p = 0}).value().local()) == to_values(x.local()));
  const std::int64_t n = 4000;
  const Var many =
      Var::constant(distribute(Tensor::full({1, n, 1, 1}, 1, DType::f32), mesh, pair_placements()));
  double kept = 0;
  for (const double value : to_values(dropout(many, {.p = 0.3, .stream = {5, 6}}).value().local()))
    kept += value > 0 ? 1 : 0;
  // Five standard deviations of the binomial distribution: a chance of 6e-7.
  CHECK(std::abs(kept - 0.7 * n) < 5 * std::sqrt(0.21 * n));
  CHECK(decisions(mesh, kRows) != decisions(mesh, {.p = 0.5, .stream = {11, stream_id("other")}}));
}

TEST_CASE("what gates refuse, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  int accepted = 0, whole_last = 0;
  for (const Placements& placements : every_placement(4)) {
    const DTensor x = zeros({12, 12, 12, 12}, DType::f32, mesh, placements);
    INFO(format(placements));
    const Var v = Var::constant(x);
    const bool partial = has_partial(placements);
    const bool last = shards(placements, 3);
    if (last)
      require_error<PlacementError>([&] { swiglu(v); }, "swiglu", "'x'", "dim 3", "redistribute");
    else if (partial)
      require_error<PartialError>([&] { swiglu(v); }, "swiglu", "'x'", "Partial");
    else
      whole_last += swiglu(v).value().placements() == placements ? 1 : 0;
    if (placements == pair_placements()) {
      ++accepted;
      CHECK(dropout(v, kRows).value().placements() == placements);
      CHECK(dropout(v, kColumns).value().placements() == placements);
      continue;
    }
    require_error<PlacementError>([&] { dropout(v, kRows); }, "dropout", "'x'", format(placements),
                                  format(pair_placements()));
    if (partial)
      require_error<PartialError>([&] { sigmoid_gate(v, v); }, "sigmoid_gate", "'x'", "Partial");
  }
  CHECK(accepted == 1);
  CHECK(whole_last == 34);  // three dims on three axes: 1 + 9 + 18 + 6
}

TEST_CASE("which samples dropout refuses") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const Var x = Var::constant(zeros({2, 3, 12, 4}, DType::f64, mesh, pair_placements()));
  const auto samples = [&](const Shape& shape, const Placements& placements) {
    return Var::constant(zeros(shape, DType::f64, mesh, placements));
  };
  const Placements by_row{Shard{0}, Shard{1}, Replicate{}},
      by_column{Shard{0}, Replicate{}, Shard{2}};
  CHECK(dropout(x, kRows, samples({2, 3, 1, 1}, by_row)).value().defined());
  CHECK(dropout(x, kColumns, samples({2, 1, 12, 1}, by_column)).value().defined());
  int refused = 0;
  for (const Placements& placements : every_placement(4)) {
    Var s;
    try {
      s = samples({2, 3, 1, 1}, placements);
    } catch (const Error&) {
      continue;  // no such tensor
    }
    if (placements == by_row) continue;
    ++refused;
    require_error<PlacementError>([&] { dropout(x, kRows, s); }, "dropout", "'samples'",
                                  format(placements), format(by_row));
  }
  CHECK(refused > 20);
  for (const Shape& shape :
       {Shape{2, 3, 1}, Shape{2, 1, 12, 1}, Shape{1, 3, 1, 1}, Shape{2, 3, 1, 4}})
    require_error<ShapeError>([&] { dropout(x, kRows, samples(shape, replicated_placements())); },
                              "dropout", "'samples'");
  Tape tape;
  const Var leaf = tape.input("s", zeros({2, 3, 1, 1}, DType::f64, mesh, by_row), true);
  require_error<GradientError>([&] { dropout(x, kRows, leaf); }, "dropout", "'samples'");
  for (const double p : {-0.1, 1.0, 2.0, std::nan("")})
    require_error<RangeError>([&] { dropout(x, {.p = p}); }, "dropout", "0 <= p < 1");
  const Var flat = Var::constant(zeros({2, 12}, DType::f64, mesh, replicated_placements()));
  require_error<ShapeError>([&] { dropout(flat, kRows); }, "dropout", "'x'", "4 dims");
  const Var odd = Var::constant(zeros({2, 3}, DType::f64, mesh, replicated_placements()));
  require_error<ShapeError>([&] { swiglu(odd); }, "swiglu", "'x'", "even");
}

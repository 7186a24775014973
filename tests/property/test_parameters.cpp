// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Layers with parameters: a serial state on any mesh, dtypes, layouts, and what is refused.
#include <cmath>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/substrate/embedding.hpp"
#include "tessera/layers/substrate/layer_norm.hpp"
#include "tessera/layers/substrate/linear.hpp"
#include "tessera/layers/trunk/transition.hpp"
#include "tessera/mesh/collectives.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> all;
  for (const NamedParameter& p : module.named_parameters()) all.push_back(p.name);
  return all;
}

// Values for all parameters, none of them zero or one.
StateDict random_state(const Module& module) {
  StateDict state = module.state();
  for (auto& [name, tensor] : state)
    fill_uniform(tensor, {9, stream_id(name)}, whole(tensor.shape()), 0.25, 1.75);
  return state;
}

struct Trained {
  Tensor output, dx;
  StateDict gradients;
};

// One forward and backward pass of a module, as full tensors.
template <class M>
Trained train(const M& module, const Operand& x) {
  const DeviceMesh& mesh = module.mesh();
  std::vector<Var> parameters = module.parameters();
  for (Var& p : parameters) p.zero_grad();
  Tape tape;
  const Var in = tape.input("x", distribute(x.full, mesh, x.placements), x.differentiable);
  const Var y = module.forward(in);
  tape.backward(y, uniform(y.value().shape(), y.value().dtype(), mesh, y.value().placements(),
                           {4, 4}, -1, 1));
  reduce_gradients(mesh, parameters);
  Trained result{full_tensor(y.value()), x.differentiable ? full_tensor(in.grad()) : Tensor(), {}};
  for (const NamedParameter& p : module.named_parameters()) {
    CHECK(p.var.grad().placements() == replicated_placements());
    CHECK(p.var.grad().dtype() == p.var.value().dtype());
    const std::vector<int> axes{kDp, kCp0, kCp1};
    CHECK(replicas_identical(mesh, axes, p.var.grad().local().contiguous()));
    result.gradients[p.name] = p.var.grad().local();
  }
  return result;
}

void check_same(const Tensor& found, const Tensor& expected, double tolerance) {
  REQUIRE(found.shape() == expected.shape());
  const Difference d = max_difference(found.to(DType::f64), expected.to(DType::f64));
  CHECK(d.max_abs <= tolerance * d.max_reference);
}

// The state of a serial module in a distributed one: equal names, results and gradients.
template <class M, class Make>
void check_distribution(const DeviceMesh& mesh, const Make& make, const Operand& x) {
  const std::unique_ptr<M> serial = make(Build{DeviceMesh::serial(), DType::f64});
  const std::unique_ptr<M> found = make(Build{mesh, DType::f64});
  CHECK(names(*found) == names(*serial));
  found->initialize(3);  // to be overwritten
  serial->load_state(random_state(*serial));
  found->load_state(serial->state());
  const Trained a = train(*serial, x);
  const Trained b = train(*found, x);
  check_same(b.output, a.output, 1e-13);
  if (x.differentiable) check_same(b.dx, a.dx, 1e-13);
  REQUIRE(b.gradients.size() == a.gradients.size());
  for (const auto& [name, gradient] : a.gradients) {
    INFO(name);
    CHECK(max_abs(gradient) > 0);
    check_same(b.gradients.at(name), gradient, 1e-12);
  }
}

Var constant(const DeviceMesh& mesh, const Tensor& t) {
  return Var::constant(distribute(t, mesh, replicated_placements()));
}

}  // namespace

TEST_CASE("a serial state on any mesh gives the serial results and gradients") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 2 + draw.below(3);
    const Placements placements = draw.placements(mesh, ndim, {ndim - 2, ndim - 1});
    Shape shape = draw.shape(mesh, placements, ndim);
    shape.back() = 3 + draw.below(3);
    const std::int64_t c = shape.back();
    const std::int64_t before = shape[static_cast<std::size_t>(ndim) - 2];
    const Operand x{draw.values(shape, -2, 2), placements};
    for (const bool bias : {true, false})
      check_distribution<Linear>(
          mesh, [&](const Build& b) { return std::make_unique<Linear>(b, c, 4, bias); }, x);
    for (const Affine affine : {Affine::none, Affine::weight, Affine::weight_and_bias})
      for (const Shape& dims : {Shape{c}, Shape{before, c}})
        check_distribution<LayerNorm>(
            mesh, [&](const Build& b) { return std::make_unique<LayerNorm>(b, dims, affine); }, x);
    check_distribution<Transition>(
        mesh, [&](const Build& b) { return std::make_unique<Transition>(b, c, 5, c); }, x);
    const Operand idx{draw.integers(shape, 0, 7), placements, false};
    check_distribution<Embedding>(
        mesh, [&](const Build& b) { return std::make_unique<Embedding>(b, 7, 3); }, idx);
  });
}

TEST_CASE("messages, saved tensors and metadata of layers on all meshes") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim, {ndim - 1});
    Shape shape = draw.shape(mesh, placements, ndim);
    shape.back() = 5;
    const Operand x{draw.values(shape, -2, 2), placements};
    check_against_serial(
        mesh,
        [](const Vars& in) {
          Linear linear({in[0].value().mesh(), DType::f64}, 5, 3);
          linear.initialize(1);
          LayerNorm norm({in[0].value().mesh(), DType::f64}, 3);
          norm.initialize(2);
          return Vars{norm.forward(linear.forward(in[0]))};
        },
        {x}, 1e-13);
    const Placements any = draw.placements(mesh, ndim);
    const Operand idx{draw.integers(draw.shape(mesh, any, ndim), 0, 6), any, false};
    check_against_serial(
        mesh, [](const Vars& in) { return Vars{shardwise_one_hot(in[0], 6)}; }, {idx}, 0);
  });
}

TEST_CASE("layers do not ask how operands lie in memory") {
  Draw draw(8);
  const Operand x{draw.values({2, 3, 4, 5}, -2, 2), replicated_placements()};
  const auto build = [](const Vars& in) { return Build{in[0].value().mesh(), DType::f64}; };
  const std::vector<Operation> operations{
      [&](const Vars& in) {
        Linear layer(build(in), 5, 3);
        layer.initialize(1);
        return Vars{layer.forward(in[0])};
      },
      [&](const Vars& in) {
        Transition layer(build(in), 5, 7, 3);
        layer.initialize(1);
        return Vars{layer.forward(in[0])};
      },
      [&](const Vars& in) { return Vars{LayerNorm(build(in), {5}, Affine::none).forward(in[0])}; },
      [&](const Vars& in) {
        LayerNorm layer(build(in), {4, 5}, Affine::weight_and_bias);
        layer.initialize(1);
        return Vars{layer.forward(in[0])};
      }};
  for (const Operation& operation : operations) check_any_layout(operation, {x}, 1e-14);
  const Operand idx{draw.integers({2, 3, 4}, 0, 6), replicated_placements(), false};
  check_any_layout(
      [&](const Vars& in) {
        Embedding layer(build(in), 6, 5);
        layer.initialize(1);
        return Vars{layer.forward(in[0]), shardwise_one_hot(in[0], 6)};
      },
      {idx}, 0);
}

TEST_CASE("LayerNorm over several dims, without parameters, in double") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Draw draw(2);
  const Tensor x = draw.values({3, 2, 4}, -5, 5);
  const std::vector<double> v = to_values(x);
  std::vector<double> expected(v.size());
  for (std::size_t row = 0; row < 3; ++row) {
    double mean = 0, variance = 0;
    for (std::size_t k = 0; k < 8; ++k) mean += v[8 * row + k] / 8;
    for (std::size_t k = 0; k < 8; ++k) variance += std::pow(v[8 * row + k] - mean, 2) / 8;
    for (std::size_t k = 0; k < 8; ++k)
      expected[8 * row + k] = (v[8 * row + k] - mean) / std::sqrt(variance + 0.5);
  }
  const LayerNorm layer({mesh, DType::f64}, {2, 4}, Affine::none, 0.5);
  check_close(layer.forward(constant(mesh, x)).value().local(), expected, 1e-14);
  CHECK(layer.named_parameters().empty());
  CHECK(names(LayerNorm({mesh, DType::f64}, {4}, Affine::weight)) ==
        std::vector<std::string>{"weight"});
}

TEST_CASE("bf16 activations and f32 parameters") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  Draw draw(3);
  const std::int64_t n = 12;
  const DTensor x =
      distribute(draw.values({1, n, n, 4}, -1, 1, DType::bf16), mesh, pair_placements());
  Linear linear({mesh, DType::f32}, 4, 6);
  LayerNorm norm({mesh, DType::f32}, 6);
  linear.initialize(1);
  norm.initialize(1);
  Tape tape;
  const Var in = tape.input("x", x, true);
  const Var y = norm.forward(linear.forward(in));
  CHECK(y.value().dtype() == DType::bf16);
  tape.backward(y, uniform(y.value().shape(), DType::bf16, mesh, pair_placements(), {1, 1}, -1, 1));
  std::vector<Var> parameters = linear.parameters();
  for (const Var& p : norm.parameters()) parameters.push_back(p);
  reduce_gradients(mesh, parameters);
  CHECK(in.grad().dtype() == DType::bf16);
  for (const Var& p : parameters) CHECK(p.grad().dtype() == DType::f32);
}

TEST_CASE("rows of a table: values, the padding row, repeated indices") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Embedding layer({mesh, DType::f64}, 3, 2, 1);
  layer.load_state({{"weight", Tensor::from_values({3, 2}, {1, 2, 3, 4, 5, 6}, DType::f64)}});
  Tape tape;
  const Var idx = tape.input(
      "idx",
      distribute(Tensor::from_values({4}, {2, 1, 2, 0}, DType::i32), mesh, replicated_placements()),
      false);
  const Var y = layer.forward(idx);
  using Values = std::vector<double>;
  CHECK(to_values(y.value().local()) == Values{5, 6, 3, 4, 5, 6, 1, 2});
  tape.backward(y, distribute(Tensor::from_values({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}, DType::f64),
                              mesh, replicated_placements()));
  CHECK(to_values(layer.parameters()[0].grad().local()) == Values{7, 8, 0, 0, 6, 8});
  CHECK(to_values(shardwise_one_hot(idx, 3).value().local()) ==
        Values{0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 0, 0});
  CHECK(shardwise_one_hot(idx, 3).value().dtype() == DType::i64);
}

TEST_CASE("what layers refuse, for all placements") {
  const NoGrad inference;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Linear linear({mesh, DType::f64}, 12, 2);
  const LayerNorm norm({mesh, DType::f64}, 12);
  const LayerNorm norm2({mesh, DType::f64}, {12, 12}, Affine::weight);
  const Embedding embedding({mesh, DType::f64}, 2, 3);
  int accepted = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = zeros({12, 12, 12}, DType::f64, mesh, placements);
    INFO(format(placements));
    const auto sharded = [&](int dim) { return shards(placements, dim); };
    const bool partial = has_partial(placements);
    const Var v = Var::constant(x);
    const Var idx = Var::constant(zeros({12, 12, 12}, DType::i64, mesh, placements));
    if (sharded(2)) {
      require_error<PlacementError>([&] { linear.forward(v); }, "linear", "'x'", "dim 2",
                                    "redistribute");
      require_error<PlacementError>([&] { norm.forward(v); }, "layer_norm", "'x'", "dim 2");
    }
    if (sharded(1) || sharded(2))
      require_error<PlacementError>([&] { norm2.forward(v); }, "layer_norm", "'x'", "dim");
    if (partial) {
      require_error<PartialError>([&] { embedding.forward(idx); }, "embedding", "'idx'", "Partial");
      require_error<PartialError>([&] { shardwise_one_hot(idx, 2); }, "shardwise_one_hot", "'idx'");
      if (!sharded(2)) require_error<PartialError>([&] { linear.forward(v); }, "linear", "'x'");
      if (!sharded(2)) require_error<PartialError>([&] { norm.forward(v); }, "layer_norm", "'x'");
      continue;
    }
    ++accepted;
    CHECK(embedding.forward(idx).value().placements() == placements);
    CHECK(shardwise_one_hot(idx, 2).value().placements() == placements);
    if (!sharded(2)) CHECK(linear.forward(v).value().placements() == placements);
    if (!sharded(1) && !sharded(2)) CHECK(norm2.forward(v).value().placements() == placements);
  }
  CHECK(accepted == 34);  // three dims on three axes: 1 + 9 + 18 + 6
}

TEST_CASE("a gradient that is placed otherwise than the result") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  Linear linear({mesh, DType::f64}, 3, 2);
  LayerNorm norm({mesh, DType::f64}, 3);
  Embedding embedding({mesh, DType::f64}, 2, 3);
  const DTensor x = zeros({1, 12, 3}, DType::f64, mesh, single_placements());
  const DTensor idx = zeros({1, 12}, DType::i64, mesh, {Shard{0}, Shard{1}, Replicate{}});
  const auto refuse = [&](const auto& forward) {
    Tape tape;
    const Var y = forward(tape);
    const DTensor g = zeros(y.value().shape(), DType::f64, mesh, single_t_placements());
    require_error<PlacementError>([&] { tape.backward(y, g); }, "(S0,R,S1)", "(S0,S1,R)");
  };
  refuse([&](Tape& tape) { return linear.forward(tape.input("x", x, true)); });
  refuse([&](Tape& tape) { return norm.forward(tape.input("x", x, true)); });
  refuse([&](Tape& tape) { return embedding.forward(tape.input("idx", idx, false)); });
}

TEST_CASE("an index out of range on one rank is an error of all ranks") {
  const NoGrad inference;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), {1, 1, test_ranks()});
  const Embedding embedding({mesh, DType::f64}, 4, 3);
  for (int bad = 0; bad < test_ranks(); ++bad)
    for (const double value : {4.0, -1.0}) {
      std::vector<double> values(static_cast<std::size_t>(test_ranks()), 3);
      values[static_cast<std::size_t>(bad)] = value;
      const Var idx =
          Var::constant(distribute(Tensor::from_values({test_ranks()}, values, DType::i64), mesh,
                                   {Replicate{}, Replicate{}, Shard{0}}));
      const std::string found = value < 0 ? "-1" : "4";
      require_error<RangeError>([&] { embedding.forward(idx); }, "embedding", "'idx'", found,
                                "0..3");
      require_error<RangeError>([&] { shardwise_one_hot(idx, 4); }, "shardwise_one_hot", "'idx'",
                                found, "0..3");
    }
}

TEST_CASE("other errors of layers") {
  const NoGrad inference;
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Build build{mesh, DType::f64};
  const Var x = Var::constant(zeros({2, 3}, DType::f64, mesh, replicated_placements()));
  const Var idx = Var::constant(zeros({2, 3}, DType::i64, mesh, replicated_placements()));
  require_error<TypeError>([&] { Embedding(build, 4, 3).forward(x); }, "embedding", "'idx'", "f64");
  require_error<TypeError>([&] { shardwise_one_hot(x, 3); }, "shardwise_one_hot", "'idx'", "f64");
  require_error<RangeError>([&] { shardwise_one_hot(idx, 0); }, "shardwise_one_hot", "given");
  require_error<RangeError>([&] { Embedding(build, 4, 3, 4); }, "Embedding", "0..3");
  require_error<ShapeError>([&] { Linear(build, 4, 3).forward(x); }, "linear");
  require_error<ShapeError>([&] { LayerNorm(build, 4).forward(x); }, "layer_norm");
  require_error<ShapeError>(
      [&] {
        LayerNorm(build, {2, 2, 3}, Affine::none).forward(x);
      },
      "layer_norm");
  if (test_ranks() > 1)
    require_error<MeshError>(
        [&] {
          Linear({DeviceMesh::serial(), DType::f64}, 3, 3).forward(x);
        },
        "linear", "'weight'");
}

// SPDX-License-Identifier: MIT
// ranks: 1
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/autodiff/gradcheck.hpp"
#include "tessera/autodiff/tape.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

const Placements kWhole(3, Replicate{});

DTensor vector_of(const std::vector<double>& values, const DeviceMesh& mesh) {
  return distribute(
      Tensor::from_values({static_cast<std::int64_t>(values.size())}, values, DType::f64), mesh,
      kWhole);
}

// y = a * b. Options plant mistakes.
struct Product {
  bool forget_second = false;
  bool save_too_much = false;
  bool wrong_sign = false;
  static constexpr const char* name = "product";
  static constexpr std::array inputs{"a", "b"};

  Contract contract() const {
    const Formula n = Formula::symbol("n");
    return {.inputs = {{"a", {n}, {PlacementRule::Kind::any}},
                       {"b", {n}, {PlacementRule::Kind::like_first}}},
            .outputs = {{"y", {n}, {PlacementRule::Kind::like_first}}},
            .messages = {},
            .saved = {}};
  }

  DTensor forward(FunctionContext& ctx, const std::array<DTensor, 2>& in) const {
    const Tensor y = Tensor::empty(in[0].local().shape(), in[0].dtype());
    multiply(in[0].local(), in[1].local(), y);
    ctx.save("a", in[0].local(), BudgetClass::scalar, save_too_much ? Shape{1} : in[0].shape());
    ctx.save("b", in[1], BudgetClass::scalar);
    return in[0].with_local(y);
  }
  std::array<DTensor, 2> backward(FunctionContext& ctx, const DTensor& g) const {
    const Tensor da = Tensor::empty(g.local().shape(), g.dtype());
    const Tensor db = Tensor::empty(g.local().shape(), g.dtype());
    multiply(g.local(), ctx.saved("b"), da);
    multiply(g.local(), ctx.saved("a"), db);
    if (wrong_sign) scale(-1, db);
    if (forget_second) return {g.with_local(da), DTensor()};
    return {g.with_local(da), g.with_local(db)};
  }
};

Var product(const Var& a, const Var& b, const Product& options = {}) {
  return apply(options, {a, b});
}

std::vector<double> grad_of(const Var& leaf) {
  return to_values(leaf.grad().local());
}

// (a + b, a - b), and what its backward was given.
struct SumAndDifference {
  static constexpr const char* name = "sum_and_difference";
  std::vector<bool>* given = nullptr;

  Contract contract(const std::vector<DTensor>&) const {
    return {
        .inputs = {{"a", any_shape()}, {"b", same_shape("a"), {PlacementRule::Kind::like_first}}},
        .outputs = {{"sum", same_shape("a")}, {"difference", same_shape("a")}},
        .messages = {},
        .saved = {}};
  }
  static DTensor combined(double sign, const DTensor& a, const DTensor& b) {
    const DTensor y = empty_like(a, a.dtype());
    add(1, a.local(), sign, b.local(), y.local());
    return y;
  }
  std::vector<DTensor> forward(FunctionContext&, const std::vector<DTensor>& in) const {
    return {combined(1, in[0], in[1]), combined(-1, in[0], in[1])};
  }
  std::vector<DTensor> backward(FunctionContext&, const std::vector<DTensor>& g) const {
    if (given != nullptr) *given = {g[0].defined(), g[1].defined()};
    const DTensor& some = g[0].defined() ? g[0] : g[1];
    const DTensor zero = zeros(some.shape(), some.dtype(), some.mesh(), some.placements());
    const DTensor& sum = g[0].defined() ? g[0] : zero;
    const DTensor& difference = g[1].defined() ? g[1] : zero;
    return {combined(1, sum, difference), combined(-1, sum, difference)};
  }
};

// y = x with a gradient that is itself computed by functions on tapes.
struct Twice {
  static constexpr const char* name = "twice";
  Var other;

  Contract contract(const std::vector<DTensor>&) const {
    return {.inputs = {{"x", any_shape()}},
            .outputs = {{"y", same_shape("x")}},
            .messages = {},
            .saved = {}};
  }
  std::vector<DTensor> forward(FunctionContext&, const std::vector<DTensor>& in) const {
    return in;
  }
  std::vector<DTensor> backward(FunctionContext&, const std::vector<DTensor>& g) const {
    return {product(other, Var::constant(g[0]), {}).value()};
  }
};

}  // namespace

TEST_CASE("gradients flow through products, also of a value with itself") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2, 3}, mesh), true);
  const Var w = Var::parameter("w", vector_of({5, 7}, mesh));
  const Var y = product(product(x, x), w);  // x^2 w
  tape.backward(y, vector_of({1, 10}, mesh));
  CHECK(to_values(y.value().local()) == std::vector<double>{20, 63});
  CHECK(grad_of(x) == std::vector<double>{2 * 2 * 5, 10 * 2 * 3 * 7});
  CHECK(grad_of(w) == std::vector<double>{4, 90});
}

TEST_CASE("contributions to a leaf add up over tapes until zero_grad") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Var w = Var::parameter("w", vector_of({5}, mesh));
  for (int k = 1; k <= 2; ++k) {
    Tape tape;
    const Var x = tape.input("x", vector_of({2}, mesh), false);
    tape.backward(product(x, w), vector_of({1}, mesh));
    CHECK(grad_of(w) == std::vector<double>{2.0 * k});
  }
  w.zero_grad();
  CHECK_FALSE(w.has_grad());
}

TEST_CASE("nothing is recorded without a gradient to want") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2}, mesh), false);
  const Var w = Var::parameter("w", vector_of({5}, mesh));
  const Var frozen = Var::parameter("frozen", vector_of({5}, mesh), false);
  product(x, frozen);
  CHECK(tape.size() == 0);
  {
    const NoGrad no_grad;
    product(x, w);
  }
  CHECK(tape.size() == 0);
  require_error<GradientError>([&] { product(Var::constant(vector_of({2}, mesh)), w); }, "product",
                               "none is on a tape");
  product(x, w);
  CHECK(tape.size() == 1);
}

TEST_CASE("a frozen operand gets no gradient") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2}, mesh), true);
  const Var frozen = Var::parameter("frozen", vector_of({5}, mesh), false);
  tape.backward(product(x, frozen), vector_of({1}, mesh));
  CHECK(grad_of(x) == std::vector<double>{5});
  require_error<GradientError>([&] { frozen.grad(); }, "frozen", "requires_grad");
}

TEST_CASE("a second backward pass, and recording after the first, are errors") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2}, mesh), true);
  const Var y = product(x, x);
  tape.backward(y, vector_of({1}, mesh));
  require_error<GradientError>([&] { tape.backward(y, vector_of({1}, mesh)); }, "second backward");
  require_error<GradientError>([&] { product(x, x); }, "product", "new Tape");
}

TEST_CASE("a missing gradient is an error that names function and operand") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2}, mesh), true);
  const Var y = product(x, x, {.forget_second = true});
  require_error<GradientError>([&] { tape.backward(y, vector_of({1}, mesh)); }, "product", "'b'");

  const Var unused = Var::parameter("unused", vector_of({1}, mesh));
  require_error<GradientError>([&] { unused.grad(); }, "unused", "no gradient has arrived");
}

TEST_CASE("the upstream gradient must be of the output's shape, mesh and placements") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2, 3}, mesh), true);
  const Var y = product(x, x);
  require_error<ShapeError>([&] { tape.backward(y, vector_of({1}, mesh)); }, "gradient", "[2]");
  require_error<MeshError>(
      [&] {
        tape.backward(y, vector_of({1, 1}, DeviceMesh::serial()));
      },
      "gradient");
  require_error<PlacementError>(
      [&] {
        tape.backward(y, DTensor::from_local(y.value().local(), mesh,
                                             {Shard{0}, Replicate{}, Replicate{}}, {2}, {1}));
      },
      "gradient");
  const Var constant = Var::constant(vector_of({1}, mesh));
  require_error<GradientError>([&] { tape.backward(constant, vector_of({1}, mesh)); });
  require_error<TypeError>(
      [&] {
        tape.backward(y, vector_of({1, 1}, mesh).to(DType::i64));
      },
      "gradient", "i64", "values of f64");
}

TEST_CASE("of gradients one of which is refused none is taken") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2, 3}, mesh), true);
  const Var y = product(x, x);
  const Var z = product(y, y);
  const DTensor one = vector_of({1, 1}, mesh);
  require_error<ShapeError>([&] { tape.backward({{y, one}, {z, vector_of({1}, mesh)}}); });
  tape.backward(y, one);
  CHECK(grad_of(x) == std::vector<double>{4, 6});
}

TEST_CASE("a leaf on another mesh is an error that names it") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const DeviceMesh other = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2}, mesh), true);
  const Var w = Var::parameter("w", vector_of({2}, other));
  require_error<MeshError>([&] { product(x, w); }, "product", "'b'");
}

TEST_CASE("operands of two tapes are an error") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape one, two;
  const Var x = one.input("x", vector_of({2}, mesh), true);
  const Var y = two.input("y", vector_of({2}, mesh), true);
  require_error<GradientError>([&] { product(x, y); }, "different tapes");
}

TEST_CASE("a saved tensor that was written to is an error") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2}, mesh), true);
  const Var y = product(x, x);
  fill(x.value().local(), 9);
  require_error<GradientError>([&] { tape.backward(y, vector_of({1}, mesh)); }, "'b'", "version");
}

TEST_CASE("integer leaves cannot require a gradient") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const DTensor index = distribute(Tensor::from_values({2}, {0, 1}, DType::i64), mesh, kWhole);
  require_error<GradientError>([&] { Var::parameter("index", index); }, "index", "i64");
}

TEST_CASE("what is saved is listed, with shared storage counted once, and freed by backward") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2, 3}, mesh), true);
  const Var y = product(x, x);
  CHECK(tape.saved().size() == 2);
  CHECK(tape.saved_bytes() == 16);
  CHECK(tape.saved().front().function == "product");
  tape.backward(y, vector_of({1, 1}, mesh));
  CHECK(tape.saved_bytes() == 0);
}

TEST_CASE("saving more than the class allows is seen") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({2, 3}, mesh), true);
#ifdef TESSERA_ASSERTIONS
  require_error<BudgetError>([&] { product(x, x, {.save_too_much = true}); }, "product", "'a'");
#else
  product(x, x, {.save_too_much = true});
  CHECK_FALSE(tape.saved().front().within());
#endif
}

TEST_CASE("gradcheck agrees with a right gradient and not with a wrong one") {
  const DeviceMesh mesh = DeviceMesh::serial();
  const Var w = Var::parameter("w", vector_of({0.3, -0.8, 0.5}, mesh));
  const Var c = Var::parameter("c", vector_of({1.5, 0.2, 2.5}, mesh), false);
  const auto cube = [&](const Product& options) {
    return [&, options](Tape& tape) {
      const Var v = tape.adopt(w);
      return std::vector<Var>{product(product(c, v), product(v, v), options)};
    };
  };
  const GradcheckResult right = gradcheck(cube({}), {w});
  CHECK(right.elements == 3);
  CHECK(right.max_error < 1e-11);  // exact for cubics but for rounding, 1e-16 / step
  CHECK(gradcheck(cube({.wrong_sign = true}), {w}).max_error > 0.1);
  const Var single = Var::parameter("s", distribute(Tensor::zeros({1}, DType::f32), mesh, kWhole));
  require_error<TypeError>([&] { gradcheck(cube({}), {single}); }, "f64");
}

TEST_CASE("a function with several results is told which of them had a gradient") {
  const DeviceMesh mesh = DeviceMesh::serial();
  for (const bool both : {true, false}) {
    Tape tape;
    const Var a = tape.input("a", vector_of({1, 2}, mesh), true);
    const Var b = tape.input("b", vector_of({3, 5}, mesh), true);
    std::vector<bool> given;
    const std::vector<Var> y = apply_many(SumAndDifference{&given}, {a, b});
    CHECK(to_values(y[1].value().local()) == std::vector<double>{-2, -3});
    std::vector<Tape::Seed> seeds{{y[1], vector_of({1, 10}, mesh)}};
    if (both) seeds.push_back({y[0], vector_of({100, 1000}, mesh)});
    tape.backward(seeds);
    CHECK(given == std::vector<bool>{both, true});
    CHECK(to_values(a.grad().local()) ==
          (both ? std::vector<double>{101, 1010} : std::vector<double>{1, 10}));
    CHECK(to_values(b.grad().local()) ==
          (both ? std::vector<double>{99, 990} : std::vector<double>{-1, -10}));
  }
}

TEST_CASE("a function is given gradients in the dtype of its results") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var a = tape.input("a", vector_of({1, 2}, mesh).to(DType::bf16), true);
  const Var b = tape.input("b", vector_of({3, 5}, mesh), false);
  const Var y = apply_many(SumAndDifference{}, {a, a}).front();
  tape.backward(product(b, y), vector_of({0.5, 1.001}, mesh));
  CHECK(a.grad().dtype() == DType::bf16);
  CHECK(to_values(a.grad().local()) == std::vector<double>{3, 10});  // 2 * 5.005, rounded
}

TEST_CASE("gradients of gradients are refused") {
  const DeviceMesh mesh = DeviceMesh::serial();
  Tape tape;
  const Var x = tape.input("x", vector_of({1, 2}, mesh), true);
  const Var y = apply_many(Twice{x}, {x}).front();
  require_error<GradientError>(
      [&] {
        tape.backward(y, vector_of({1, 1}, mesh));
      },
      "product", "gradients of gradients");
  CHECK_FALSE(in_backward());
  Tape again;
  const Var w = again.input("w", vector_of({1, 2}, mesh), true);
  const Var z = apply_many(Twice{Var::constant(vector_of({2, 3}, mesh))}, {w}).front();
  again.backward(z, vector_of({1, 1}, mesh));
  CHECK(to_values(w.grad().local()) == std::vector<double>{2, 3});
}

TEST_CASE("an error of placements says which explicit operation to call") {
  const DeviceMesh mesh = DeviceMesh::dry_run({1, 2, 2}, 0);
  const auto make = [&](const Placements& placements) {
    return Var::constant(zeros({4, 4, 4}, DType::f64, mesh, placements));
  };
  const Var single = make(single_placements());
  const auto call = [&](const Var& other) { apply_many(SumAndDifference{}, {single, other}); };
  require_error<PlacementError>([&] { call(make(pair_placements())); }, "sum_and_difference", "'b'",
                                "(S0,S1,S2)", "(S0,S1,R)", "redistribute(x, (S0,S1,R))");
  require_error<PlacementError>([&] { call(make(single_t_placements())); },
                                "mesh_transpose(x, (S0,S1,R))");
  require_error<PlacementError>(
      [&] {
        call(make({Shard{0}, Shard{1}, Partial{}}));
      },
      "reduce it first");
  require_error<ShapeError>(
      [&] {
        call(Var::constant(zeros({4, 8, 4}, DType::f64, mesh, single_placements())));
      },
      "'b'", "[4, 8, 4]", "[4, 4, 4]");
  const DeviceMesh other = DeviceMesh::dry_run({1, 2, 2}, 0);
  require_error<MeshError>(
      [&] {
        call(Var::constant(zeros({4, 4, 4}, DType::f64, other, single_placements())));
      },
      "'b'");
}

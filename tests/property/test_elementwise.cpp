// SPDX-License-Identifier: MIT
// ranks: 1 4 6
// Elementwise operations: values against formulas in double, random problems on all meshes, kinks,
// dtypes, and everything that is refused.
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/distributed.hpp"
#include "support/mpi.hpp"
#include "support/tensors.hpp"
#include "tessera/layers/substrate/elementwise.hpp"

using namespace tessera;

namespace {

using Vars = std::vector<Var>;

struct Unary1 {
  const char* name;
  Var (*function)(const Var&);
  double (*value)(double);
  double low, high;  // where it is defined
};

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

const std::vector<Unary1> kUnary{
    {"cos", cos, [](double x) { return std::cos(x); }, -1000, 1000},
    {"relu", relu, [](double x) { return std::fmax(x, 0.0); }, -1000, 1000},
    {"round", round, [](double x) { return std::nearbyint(x); }, -1000, 1000},
    {"log", log, [](double x) { return std::log(x); }, 0.1, 50},
    {"exp", exp, [](double x) { return std::exp(x); }, -10, 10},
    {"abs", abs, [](double x) { return std::fabs(x); }, -1000, 1000},
    {"sigmoid", sigmoid, sigmoid_of, -10, 10},
    {"3/2 + x", [](const Var& x) { return add(1.5, x); }, [](double x) { return 1.5 + x; }, -9, 9},
    {"3/2 - x", [](const Var& x) { return subtract(1.5, x); }, [](double x) { return 1.5 - x; }, -9,
     9},
    {"3/2 x", [](const Var& x) { return multiply(1.5, x); }, [](double x) { return 1.5 * x; }, -9,
     9},
    {"3/2 / x", [](const Var& x) { return divide(1.5, x); }, [](double x) { return 1.5 / x; }, 0.1,
     9},
    {"max(3/2, x)", [](const Var& x) { return maximum(1.5, x); },
     [](double x) { return std::fmax(1.5, x); }, -9, 9},
    {"x^5/2", [](const Var& x) { return power(x, 2.5); }, [](double x) { return std::pow(x, 2.5); },
     0, 9},
    {"x^-3", [](const Var& x) { return power(x, -3); }, [](double x) { return 1 / (x * x * x); },
     -9, -1},
    {"x^0", [](const Var& x) { return power(x, 0); }, [](double) { return 1.0; }, -9, 9},
    {"3/2 == x", [](const Var& x) { return equal(1.5, x); },
     [](double x) { return x == 1.5 ? 1.0 : 0.0; }, 1, 2},
    {"3/2 > x", [](const Var& x) { return greater(1.5, x); },
     [](double x) { return 1.5 > x ? 1.0 : 0.0; }, -9, 9},
    {"3/2 < x", [](const Var& x) { return less(1.5, x); },
     [](double x) { return 1.5 < x ? 1.0 : 0.0; }, -9, 9},
    {"clip",
     [](const Var& x) {
       return clip(x, {-1, 2});
     },
     [](double x) { return std::fmin(std::fmax(x, -1.0), 2.0); }, -9, 9},
    {"clip high",
     [](const Var& x) {
       return clip(x, {{}, 2});
     },
     [](double x) { return std::fmin(x, 2.0); }, -9, 9},
};

struct Binary2 {
  const char* name;
  Var (*function)(const Var&, const Var&);
  double (*value)(double, double);
};
const std::vector<Binary2> kBinary{
    {"add", add, [](double a, double b) { return a + b; }},
    {"subtract", subtract, [](double a, double b) { return a - b; }},
    {"multiply", multiply, [](double a, double b) { return a * b; }},
    {"divide", divide, [](double a, double b) { return a / b; }},
};

const DeviceMesh& one_rank() {
  static const DeviceMesh mesh = DeviceMesh::serial();
  return mesh;
}

Var constant(const Tensor& t) {
  return Var::constant(distribute(t, one_rank(), replicated_placements()));
}
std::vector<double> values_of(const Var& y) {
  return to_values(y.value().local());
}

// Every 17th element is 0.
Tensor with_zeros(const Tensor& t) {
  std::vector<double> values = to_values(t);
  for (std::size_t k = 0; k < values.size(); k += 17) values[k] = 0;
  return Tensor::from_values(t.shape(), values, t.dtype());
}

// The gradient of one operation for the upstream gradient g, on one rank.
std::vector<double> gradient(const std::function<Var(const Var&)>& f, const Tensor& x,
                             const Tensor& g) {
  const DeviceMesh& mesh = one_rank();
  Tape tape;
  const Var in = tape.input("x", distribute(x, mesh, replicated_placements()), true);
  tape.backward(f(in), distribute(g, mesh, replicated_placements()));
  return to_values(in.grad().local());
}

}  // namespace

TEST_CASE("values of functions of one tensor") {
  Draw draw(1);
  for (const Unary1& u : kUnary) {
    INFO(u.name);
    const Tensor x = draw.values({5, 7}, u.low, u.high);
    std::vector<double> expected;
    for (const double v : to_values(x)) expected.push_back(u.value(v));
    check_close(u.function(constant(x)).value().local(), expected, 1e-13);
    CHECK(values_of(u.function(constant(x.to(DType::bf16)))).size() == expected.size());
  }
  check_close(
      equal(1.5, constant(Tensor::from_values({3}, {1.5, 1, 2}, DType::bf16))).value().local(),
      {1, 0, 0}, 0);
  // The number is compared as x would hold it.
  const Tensor tenth = Tensor::from_values({1}, {0.1}, DType::bf16);
  CHECK(values_of(equal(0.1, constant(tenth))) == std::vector<double>{1});
  CHECK(values_of(greater(0.1, constant(tenth))) == std::vector<double>{0});
  CHECK(values_of(less(0.1, constant(tenth))) == std::vector<double>{0});
  CHECK(values_of(round(constant(Tensor::from_values({4}, {0.5, 1.5, 2.5, -0.5}, DType::f64)))) ==
        std::vector<double>{0, 2, 2, 0});
}

TEST_CASE("values of functions of two tensors") {
  Draw draw(2);
  const Tensor a = draw.values({4, 9}, -1000, 1000);
  const Tensor b = draw.values({4, 9}, 1, 1000);
  const std::vector<double> av = to_values(a), bv = to_values(b);
  for (const Binary2& f : kBinary) {
    INFO(f.name);
    std::vector<double> expected;
    for (std::size_t k = 0; k < av.size(); ++k) expected.push_back(f.value(av[k], bv[k]));
    check_close(f.function(constant(a), constant(b)).value().local(), expected, 1e-15);
  }
  const Var p = constant(Tensor::from_values({4}, {5, 6, 0, 3}, DType::i64));
  const Var q = constant(Tensor::from_values({4}, {5, 3, 0, 2}, DType::i64));
  // Equality is not the bitwise "and": 6 & 3 is 2, and 0 == 0.
  CHECK(values_of(equal(p, q)) == std::vector<double>{1, 0, 1, 0});
  CHECK(values_of(bit_and(p, q)) == std::vector<double>{5, 2, 0, 2});
  CHECK(equal(p, q).value().dtype() == DType::boolean);
  const Var cond = constant(Tensor::from_values({4}, {1, 0, 0, 1}, DType::boolean));
  CHECK(values_of(where(cond, p, q)) == std::vector<double>{5, 3, 0, 3});
}

TEST_CASE("values of replicate_op") {
  const Var lhs = Var::constant(distribute(Tensor::from_values({2, 2}, {1, 2, 3, 4}, DType::f64),
                                           one_rank(), {Replicate{}, Shard{1}, Replicate{}}));
  const Var rhs = constant(Tensor::from_values({2}, {10, 20}, DType::f64));
  using Values = std::vector<double>;
  CHECK(values_of(replicate_op(lhs, rhs, 1, Arithmetic::add)) == Values{11, 12, 23, 24});
  CHECK(values_of(replicate_op(lhs, rhs, 1, Arithmetic::subtract)) == Values{-9, -8, -17, -16});
  CHECK(values_of(replicate_op(lhs, rhs, -1, Arithmetic::multiply)) == Values{10, 20, 60, 80});
  check_close(replicate_op(lhs, rhs, 1, Arithmetic::divide).value().local(), {0.1, 0.2, 0.15, 0.2},
              1e-15);
}

TEST_CASE("functions of one tensor on all meshes") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim);
    const Shape shape = draw.shape(mesh, placements, ndim);
    for (const Unary1& u : kUnary) {
      INFO(u.name);
      Tensor x = draw.values(shape, u.low, u.high, draw.below(2) == 0 ? DType::f64 : DType::f32);
      if (u.low < 0 && u.high > 0) x = with_zeros(x);
      check_against_serial(
          mesh, [&](const Vars& in) { return Vars{u.function(in[0])}; }, {{x, placements}}, 0);
    }
  });
}

TEST_CASE("functions of two and three tensors on all meshes") {
  on_all_meshes(8, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const Placements placements = draw.placements(mesh, ndim);
    const Shape shape = draw.shape(mesh, placements, ndim);
    const Operand a{draw.values(shape, -1000, 1000), placements, draw.below(3) > 0};
    const Operand b{draw.values(shape, 1, 1000, DType::f32), placements, draw.below(3) > 0};
    for (const Binary2& f : kBinary)
      check_against_serial(
          mesh, [&](const Vars& in) { return Vars{f.function(in[0], in[1])}; }, {a, b}, 0);
    const Operand p{draw.integers(shape, -2, 3), placements, false};
    const Operand q{draw.integers(shape, -2, 3), placements, false};
    check_against_serial(
        mesh,
        [](const Vars& in) {
          return Vars{equal(in[0], in[1]), bit_and(in[0], in[1]), add(2, in[0])};
        },
        {p, q}, 0);
    const Operand cond{draw.booleans(shape), placements, false};
    check_against_serial(
        mesh, [](const Vars& in) { return Vars{where(in[0], in[1], in[2])}; }, {cond, a, b}, 0);
  });
}

TEST_CASE("replicate_op on all meshes") {
  on_all_meshes(12, [](const DeviceMesh& mesh, Draw& draw) {
    const int ndim = 1 + draw.below(4);
    const int dim = draw.below(ndim);
    const int axis = draw.below(mesh.ndim());
    Placements lhs = draw.placements(mesh, ndim, {dim});
    lhs[static_cast<std::size_t>(axis)] = Shard{dim};
    Shape shape = draw.shape(mesh, lhs, ndim);
    Placements rhs = lhs;
    for (Placement& p : rhs) {
      if (is_shard(p, dim)) p = Replicate{};
      if (is_shard(p) && std::get<Shard>(p).dim > dim) p = Shard{std::get<Shard>(p).dim - 1};
    }
    Shape small = shape;
    small.erase(small.begin() + dim);
    const bool both = draw.below(3) > 0;
    for (const Arithmetic op :
         {Arithmetic::add, Arithmetic::subtract, Arithmetic::multiply, Arithmetic::divide}) {
      INFO("dim " << dim << " op " << static_cast<int>(op));
      const Operand a{draw.values(shape, -1, 1), lhs, both || draw.below(2) == 0};
      const Operand b{draw.values(small, 0.5, 2, DType::f32), rhs, both || !a.differentiable};
      check_against_serial(
          mesh, [&](const Vars& in) { return Vars{replicate_op(in[0], in[1], dim - ndim, op)}; },
          {a, b}, b.differentiable ? 1e-6 : 0);  // the gradient of b is rounded to f32
    }
  });
}

TEST_CASE("operands that lie otherwise in memory") {
  Draw draw(5);
  const Placements whole = replicated_placements();
  const Shape shape{3, 4, 5};
  for (const Unary1& u : kUnary)
    check_any_layout([&](const Vars& in) { return Vars{u.function(in[0])}; },
                     {{draw.values(shape, u.low, u.high), whole}}, 0);
  const Operand a{draw.values(shape, -1, 1), whole}, b{draw.values(shape, 1, 2), whole};
  for (const Binary2& f : kBinary)
    check_any_layout([&](const Vars& in) { return Vars{f.function(in[0], in[1])}; }, {a, b}, 0);
  check_any_layout([](const Vars& in) { return Vars{where(in[0], in[1], in[2])}; },
                   {{draw.booleans(shape), whole, false}, a, b}, 0);
  const Operand lhs{draw.values(shape, -1, 1), {Replicate{}, Shard{1}, Replicate{}}};
  const Operand rhs{draw.values({3, 5}, 1, 2), whole};
  check_any_layout(
      [](const Vars& in) { return Vars{replicate_op(in[0], in[1], 1, Arithmetic::divide)}; },
      {lhs, rhs}, 1e-15);
}

TEST_CASE("gradients at kinks and beside values that are not finite") {
  using Values = std::vector<double>;
  const Tensor x = Tensor::from_values({5}, {-1, 0, 1, 2, 3}, DType::f64);
  const Tensor g = Tensor::from_values({5}, {10, 20, 30, 40, 50}, DType::f64);
  CHECK(gradient(relu, x, g) == Values{0, 0, 30, 40, 50});
  CHECK(gradient([](const Var& v) { return abs(v); }, x, g) == Values{-10, 0, 30, 40, 50});
  CHECK(gradient([](const Var& v) { return maximum(1, v); }, x, g) == Values{0, 0, 30, 40, 50});
  CHECK(gradient([](const Var& v) { return clip(v, {0, 2}); }, x, g) == Values{0, 20, 30, 40, 0});
  CHECK(gradient([](const Var& v) { return power(v, 0); }, x, g) == Values{0, 0, 0, 0, 0});
  CHECK(gradient([](const Var& v) { return power(v, 1); }, x, g) == Values{10, 20, 30, 40, 50});
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor wild = Tensor::from_values({5}, {inf, inf, 1, 1, 1}, DType::f64);
  CHECK(gradient(relu, x, wild) == Values{0, 0, 1, 1, 1});
  const Var cond = constant(Tensor::from_values({5}, {0, 0, 1, 1, 0}, DType::f64));
  CHECK(gradient([&](const Var& v) { return where(cond, v, v); }, x, g) ==
        Values{10, 20, 30, 40, 50});
  CHECK(gradient([&](const Var& v) { return where(cond, v, constant(x)); }, x, wild) ==
        Values{0, 0, 1, 1, 0});
}

TEST_CASE("dtypes of results and gradients") {
  const auto of = [](DType dtype) { return constant(Tensor::from_values({2}, {1, 2}, dtype)); };
  for (const DType a :
       {DType::boolean, DType::i32, DType::i64, DType::bf16, DType::f32, DType::f64})
    for (const DType b : {DType::boolean, DType::i32, DType::bf16, DType::f64}) {
      CHECK(add(of(a), of(b)).value().dtype() == promote(a, b));
      const DType quotient = is_floating(promote(a, b)) ? promote(a, b) : DType::f32;
      CHECK(divide(of(a), of(b)).value().dtype() == quotient);
    }
  for (const DType dtype : floating_dtypes) {
    CHECK(add(0.5, of(dtype)).value().dtype() == dtype);
    CHECK(power(of(dtype), 0.5).value().dtype() == dtype);
    CHECK(cos(of(dtype)).value().dtype() == dtype);
  }
  CHECK(add(2, of(DType::i32)).value().dtype() == DType::i32);
  CHECK(add(0.5, of(DType::i32)).value().dtype() == DType::f32);
  CHECK(multiply(2, of(DType::boolean)).value().dtype() == DType::i64);
  CHECK(divide(2, of(DType::i64)).value().dtype() == DType::f32);
  CHECK(power(of(DType::i64), 2).value().dtype() == DType::f32);
  // bf16 and f32: the result and both gradients are f32.
  const DeviceMesh& mesh = one_rank();
  Tape tape;
  const Var a = tape.input(
      "a", distribute(Tensor::full({2}, 1, DType::bf16), mesh, replicated_placements()), true);
  const Var b = tape.input(
      "b", distribute(Tensor::full({2}, 2, DType::f32), mesh, replicated_placements()), true);
  const Var y = multiply(a, b);
  tape.backward(y, distribute(Tensor::full({2}, 1, DType::f32), mesh, replicated_placements()));
  CHECK(y.value().dtype() == DType::f32);
  CHECK(a.grad().dtype() == DType::f32);
  CHECK(b.grad().dtype() == DType::f32);
}

namespace {

// A tensor of three dims with these placements, or nothing if no such tensor exists.
DTensor placed(const DeviceMesh& mesh, const Placements& placements, const Shape& shape) {
  try {
    return zeros(shape, DType::f64, mesh, placements);
  } catch (const PlacementError&) {
    return {};  // one dim sharded twice
  }
}

}  // namespace

TEST_CASE("what one, two and three operands refuse, for all placements") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Shape shape{12, 12, 12};
  const Placements usual{Shard{0}, Shard{1}, Replicate{}};
  const Var other = Var::constant(zeros(shape, DType::f64, mesh, usual));
  int accepted = 0, refused = 0;
  for (const Placements& placements : every_placement(3)) {
    const DTensor x = placed(mesh, placements, shape);
    if (!x.defined()) continue;
    INFO(format(placements));
    const Var v = Var::constant(x);
    if (std::any_of(placements.begin(), placements.end(), is_partial)) {
      ++refused;
      require_error<PartialError>([&] { cos(v); }, "cos", "'x'", "Partial", format(placements));
      require_error<PartialError>([&] { add(v, v); }, "add", "'a'", "Partial");
      require_error<PartialError>([&] { clip(v, {0, 1}); }, "clip", "'x'", "Partial");
      require_error<PartialError>([&] { where(v, v, v); }, "where", "'cond'", "Partial");
      continue;
    }
    ++accepted;
    CHECK(exp(v).value().placements() == placements);
    if (placements == usual) {
      CHECK(multiply(other, v).value().placements() == usual);
      continue;
    }
    require_error<PlacementError>([&] { multiply(other, v); }, "multiply", "'b'",
                                  format(placements), format(usual), "(x, ");
    require_error<PlacementError>([&] { where(other, other, v); }, "where", "'y'",
                                  format(placements), format(usual), "(x, ");
  }
  CHECK(accepted > 20);
  CHECK(refused > 20);
}

TEST_CASE("what replicate_op refuses, for all placements of both operands") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  int accepted = 0;
  for (const Placements& on_lhs : every_placement(2))
    for (const Placements& on_rhs : every_placement(1)) {
      const DTensor lhs = placed(mesh, on_lhs, {12, 12});
      const DTensor rhs = placed(mesh, on_rhs, {12});
      if (!lhs.defined() || !rhs.defined()) continue;
      const auto call = [&] {
        return replicate_op(Var::constant(lhs), Var::constant(rhs), 1, Arithmetic::add);
      };
      bool replicated_once = false, partial = false, matched = true;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        if (is_shard(on_lhs[axis], 1)) replicated_once = true;
        if (is_partial(on_lhs[axis])) partial = true;
        const Placement expected =
            is_shard(on_lhs[axis], 1) ? Placement(Replicate{}) : on_lhs[axis];
        matched = matched && on_rhs[axis] == expected;
      }
      INFO(format(on_lhs) << " and " << format(on_rhs));
      if (!replicated_once) {
        require_error<PlacementError>(call, "replicate_op", "'lhs'", "dim 1", format(on_lhs));
      } else if (partial) {
        require_error<PartialError>(call, "replicate_op", "'lhs'", "Partial");
      } else if (!matched) {
        require_error<PlacementError>(call, "replicate_op", "'rhs'", format(on_rhs));
      } else {
        ++accepted;
        CHECK(call().value().placements() == on_lhs);
      }
    }
  CHECK(accepted == 9);  // dim 1 on one of three axes, dim 0 on one of the two others or on none
  const Var lhs =
      Var::constant(zeros({12, 12}, DType::f64, mesh, {Replicate{}, Replicate{}, Shard{1}}));
  const Var rhs = Var::constant(zeros({6}, DType::f64, mesh, replicated_placements()));
  require_error<ShapeError>([&] { replicate_op(lhs, rhs, 1, Arithmetic::add); }, "replicate_op",
                            "'rhs'", "[12]");
  require_error<RangeError>([&] { replicate_op(lhs, rhs, 2, Arithmetic::add); }, "replicate_op");
}

TEST_CASE("other errors of elementwise operations") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Placements whole = replicated_placements();
  const Var x = Var::constant(zeros({2, 3}, DType::f64, mesh, whole));
  const Var row = Var::constant(zeros({1, 3}, DType::f64, mesh, whole));
  const Var index = Var::constant(zeros({2, 3}, DType::i64, mesh, whole));
  require_error<ShapeError>([&] { add(x, row); }, "add", "'b'", "[1, 3]", "[2, 3]");
  require_error<ShapeError>([&] { where(x, x, row); }, "where", "'y'", "[1, 3]", "[2, 3]");
  require_error<ShapeError>([&] { where(row, x, x); }, "where", "'x'", "[1, 3]", "[2, 3]");
  require_error<TypeError>([&] { log(index); }, "log", "'x'", "i64");
  require_error<TypeError>([&] { clip(index, {0, 1}); }, "clip", "'x'", "i64");
  require_error<TypeError>([&] { bit_and(index, x); }, "bit_and", "'b'", "f64");
  require_error<UsageError>([&] { clip(x, {}); }, "clip", "low");
  if (test_ranks() > 1)
    require_error<MeshError>(
        [&] {
          add(x, Var::constant(zeros({2, 3}, DType::f64, DeviceMesh::serial(), whole)));
        },
        "add", "'b'");
  Tape tape;
  const Var leaf = tape.input("leaf", x.value(), true);
  require_error<GradientError>([&] { equal(x, leaf); }, "equal", "'b'", "Var::constant");
  require_error<GradientError>([&] { bit_and(leaf, x); }, "bit_and", "'a'");
  require_error<GradientError>([&] { where(leaf, x, x); }, "where", "'cond'");
  CHECK_FALSE(greater(0, leaf).requires_grad());
  CHECK_FALSE(round(leaf).requires_grad());
}

TEST_CASE("a negative element under a root on one rank is an error of all ranks") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const int n = test_ranks();
  for (int bad = 0; bad < n; ++bad) {
    std::vector<double> values(static_cast<std::size_t>(n) * 2, 1);
    values[static_cast<std::size_t>(bad) * 2] = -3;
    const Tensor full =
        Tensor::from_values({mesh.size(kCp0), mesh.size(kCp1), 2}, values, DType::f64);
    const Var x = Var::constant(distribute(full, mesh, {Replicate{}, Shard{0}, Shard{1}}));
    require_error<RangeError>([&] { power(x, 0.5); }, "power", "'x'", "-3", "abs()");
    CHECK(power(x, 2).value().defined());
  }
}

TEST_CASE("summands below zero are refused as Partial, not as a base of a power") {
  const DeviceMesh mesh = DeviceMesh::create(test_world(), squarest(test_ranks()));
  const Placements placements{Replicate{}, Partial{ReduceOp::sum}, Replicate{}};
  const DTensor summands = zeros({2}, DType::f64, mesh, placements);
  fill(summands.local(), -1);
  const Var x = Var::constant(summands);
  require_error<PartialError>([&] { power(x, 0.5); }, "power", "'x'", format(placements));
}

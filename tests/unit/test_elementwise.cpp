// SPDX-License-Identifier: MIT
// ranks: 1
#include <functional>
#include <limits>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

const std::vector<DType> all_dtypes{DType::f64, DType::f32, DType::bf16,
                                    DType::i64, DType::i32, DType::boolean};
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

// Around the buffer of 512; dims that merge and dims that do not.
const std::vector<Shape> shapes{{}, {0, 3}, {7}, {513}, {3, 5}, {2, 3, 4, 5}, {5, 1, 700}};

struct UnaryCase {
  const char* name;
  Unary op;
  double (*f)(double);
  double tolerance;  // in roundings of the arithmetic
};
const std::vector<UnaryCase> unary_cases{
    {"cos", Unary::cos, [](double x) { return std::cos(x); }, 2},
    {"sin", Unary::sin, [](double x) { return std::sin(x); }, 2},
    {"relu", Unary::relu, [](double x) { return x > 0 ? x : 0; }, 0},
    {"round", Unary::round, [](double x) { return std::nearbyint(x); }, 0},
    {"log", Unary::log, [](double x) { return std::log(x); }, 2},
    {"exp", Unary::exp, [](double x) { return std::exp(x); }, 4},
    {"abs", Unary::abs, [](double x) { return std::abs(x); }, 0},
    {"sign", Unary::sign, [](double x) { return x > 0   ? 1.0
                                                : x < 0 ? -1.0
                                                        : 0.0; }, 0},
    {"sigmoid", Unary::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 4},
    {"sqrt", Unary::sqrt, [](double x) { return std::sqrt(x); }, 1},
    {"negate", Unary::negate, [](double x) { return -x; }, 0},
    {"logical_not", Unary::logical_not, [](double x) { return x == 0 ? 1.0 : 0.0; }, 0},
    {"step", Unary::step, [](double x) { return x > 0 ? 1.0 : 0.0; }, 0}};

struct BinaryCase {
  const char* name;
  Binary op;
  double (*f)(double, double);
  double tolerance;
};
const std::vector<BinaryCase> binary_cases{
    {"add", Binary::add, [](double a, double b) { return a + b; }, 1},
    {"subtract", Binary::subtract, [](double a, double b) { return a - b; }, 1},
    {"multiply", Binary::multiply, [](double a, double b) { return a * b; }, 1},
    {"divide", Binary::divide, [](double a, double b) { return a / b; }, 1},
    {"maximum", Binary::maximum, [](double a, double b) { return a > b ? a : b; }, 0},
    {"minimum", Binary::minimum, [](double a, double b) { return a < b ? a : b; }, 0},
    {"power", Binary::power, [](double a, double b) { return std::pow(a, b); }, 2},
    {"equal", Binary::equal, [](double a, double b) { return a == b ? 1.0 : 0.0; }, 0},
    {"less", Binary::less, [](double a, double b) { return a < b ? 1.0 : 0.0; }, 0},
    {"less_equal", Binary::less_equal, [](double a, double b) { return a <= b ? 1.0 : 0.0; }, 0},
    {"logical_and", Binary::logical_and,
     [](double a, double b) { return a != 0 && b != 0 ? 1.0 : 0.0; }, 0},
    {"bit_and", Binary::bit_and,
     [](double a, double b) {
       return static_cast<double>(static_cast<std::int64_t>(a) & static_cast<std::int64_t>(b));
     },
     0}};

// Multiples of 1/4 in [-3, 3), of which an integer dtype keeps the whole part; `positive`: in
// [1, 4). All dtypes hold them exactly, and equal values are frequent.
Tensor numbers(const Shape& shape, DType dtype, std::string_view name, bool positive = false) {
  const Tensor t = Tensor::empty(shape, DType::f64);
  fill_uniform(t, {9, stream_id(name)}, whole(shape), positive ? 1 : -3, positive ? 4 : 3);
  auto* x = t.host_data<double>();
  for (std::int64_t i = 0; i < t.numel(); ++i) x[i] = std::floor(x[i] * 4) / 4;
  return t.to(dtype);
}

// What is stored where `value` is the result of the arithmetic.
double stored(double value, DType dtype) {
  if (dtype == DType::boolean) return value != 0 ? 1 : 0;
  return is_floating(dtype) ? value : std::trunc(value);
}

// One rounding of the result, and `steps` of the arithmetic, which is at least f32.
double tolerance_for(DType out, double steps, DType in) {
  if (!is_floating(out)) return 0;
  const DType arithmetic = out == DType::f64 || in == DType::f64 ? DType::f64 : DType::f32;
  return rounding_of(out) + steps * rounding_of(arithmetic);
}

std::vector<Tensor> layouts(const Tensor& t) {
  return {t, scattered(t)};
}

double only(const Tensor& t) {
  return to_values(t).front();
}
double value_of(Unary op, double x, DType in, DType out) {
  const Tensor result = Tensor::empty({}, out);
  unary(op, Tensor::full({}, x, in), result);
  return only(result);
}
double value_of(Binary op, double a, double b, DType in, DType out) {
  const Tensor result = Tensor::empty({}, out);
  binary(op, Tensor::full({}, a, in), Tensor::full({}, b, in), result);
  return only(result);
}
Tensor integer(std::int64_t value) {
  const Tensor t = Tensor::empty({}, DType::i64);
  *t.host_data<std::int64_t>() = value;
  return t;
}
std::int64_t integer_of(const Tensor& t) {
  return *t.host_data<std::int64_t>();
}

}  // namespace

TEST_CASE("unary operations agree with double") {
  for (const UnaryCase& c : unary_cases)
    for (const DType dtype : all_dtypes)
      for (const DType result : all_dtypes)
        for (const Shape& shape : shapes) {
          CAPTURE(c.name, name_of(dtype), name_of(result), format_shape(shape));
          const bool positive = c.op == Unary::log || c.op == Unary::sqrt;
          const Tensor a = numbers(shape, dtype, "a", positive);
          std::vector<double> expected = to_values(a);
          for (double& x : expected) x = stored(c.f(x), result);
          for (const Tensor& in : layouts(a))
            for (const Tensor& out : layouts(Tensor::full(shape, 1, result))) {
              unary(c.op, in, out);
              check_close(out, expected, tolerance_for(result, c.tolerance, dtype));
            }
        }
}

TEST_CASE("binary operations agree with double") {
  for (const BinaryCase& c : binary_cases)
    for (const DType da : all_dtypes)
      for (const DType db : all_dtypes) {
        if (c.op == Binary::bit_and && (is_floating(da) || is_floating(db))) continue;
        for (const DType result : all_dtypes)
          for (const Shape& shape : shapes) {
            CAPTURE(c.name, name_of(da), name_of(db), name_of(result), format_shape(shape));
            // A divisor is not 0, a base and an exponent are positive.
            const bool power = c.op == Binary::power;
            const Tensor a = numbers(shape, da, "a", power);
            const Tensor b = numbers(shape, db, "b", power || c.op == Binary::divide);
            const auto x = to_values(a);
            std::vector<double> expected = to_values(b);
            for (std::size_t i = 0; i < x.size(); ++i)
              expected[i] = stored(c.f(x[i], expected[i]), result);
            const DType widest = promote(da, db);
            const double tolerance = tolerance_for(result, c.tolerance, widest);
            const Tensor out = scattered(Tensor::full(shape, 1, result));
            binary(c.op, a, scattered(b), out);
            check_close(out, expected, tolerance);
            const Tensor plain = Tensor::full(shape, 1, result);
            binary(c.op, scattered(a), b, plain);
            CHECK(bitwise_equal(plain, out));
          }
      }
}

TEST_CASE("select takes from either side") {
  for (const DType dtype : all_dtypes)
    for (const DType condition : all_dtypes)
      for (const Shape& shape : shapes) {
        CAPTURE(name_of(dtype), name_of(condition), format_shape(shape));
        const Tensor cond = numbers(shape, condition, "cond");
        const Tensor a = numbers(shape, dtype, "a");
        const Tensor b = numbers(shape, dtype, "b");
        const auto c = to_values(cond), x = to_values(a), y = to_values(b);
        std::vector<double> expected(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) expected[i] = c[i] != 0 ? x[i] : y[i];
        const Tensor out = Tensor::full(shape, 1, dtype);
        select(scattered(cond), a, scattered(b), out);
        check_close(out, expected, 0);
        select(cond, a, b, b);
        CHECK(bitwise_equal(b, out));
      }
  // Integers stay exact whatever decides; so does a condition that f32 would flush to 0.
  const Tensor big = integer((std::int64_t{1} << 53) + 1);
  const Tensor out = integer(0);
  select(Tensor::full({}, 0.5, DType::f32), big, integer(7), out);
  CHECK(integer_of(out) == integer_of(big));
  const Tensor half = Tensor::empty({}, DType::f32);
  select(Tensor::full({}, 1e-300, DType::f64), Tensor::full({}, 2, DType::f32), half.clone(), half);
  CHECK(only(half) == 2);
}

TEST_CASE("expanded operands repeat") {
  for (const DType dtype : all_dtypes) {
    CAPTURE(name_of(dtype));
    const Tensor a = numbers({5, 1, 700}, dtype, "a");
    const Tensor b = numbers({1, 3, 1}, dtype, "b");
    const Shape shape{5, 3, 700};
    const Tensor x = a.expand(shape), y = b.expand(shape);
    const Tensor found = Tensor::empty(shape, DType::f64);
    const Tensor expected = Tensor::empty(shape, DType::f64);
    binary(Binary::multiply, x, y, found);
    binary(Binary::multiply, x.contiguous(), y.contiguous(), expected);
    CHECK(bitwise_equal(found, expected));
    unary(Unary::exp, y, found);
    unary(Unary::exp, y.contiguous(), expected);
    CHECK(bitwise_equal(found, expected));
    select(y, x, y, found);
    select(y.contiguous(), x.contiguous(), y.contiguous(), expected);
    CHECK(bitwise_equal(found, expected));
    CHECK(x.item({4, 2, 600}) == a.item({4, 0, 600}));
  }
  CHECK(Tensor::full({1, 2}, 1, DType::f32).expand({0, 2}).numel() == 0);
}

TEST_CASE("a number is an operand of the tensor's arithmetic") {
  const Tensor i = Tensor::from_values({3}, {-3, 0, 5}, DType::i64);
  const Tensor out = Tensor::empty({3}, DType::f64);
  binary(Binary::add, i, 2, out);
  CHECK(to_values(out) == std::vector<double>{-1, 2, 7});
  binary(Binary::subtract, 1, i, out);
  CHECK(to_values(out) == std::vector<double>{4, 1, -4});
  binary(Binary::multiply, i, 0.5, out);
  CHECK(to_values(out) == std::vector<double>{-1.5, 0, 2.5});
  binary(Binary::bit_and, i, 4, out);  // -3 is ...101
  CHECK(to_values(out) == std::vector<double>{4, 0, 4});
  // 2^53 + 1 needs i64, which a whole number leaves; 0.1 is that of f32 beside f32 and bf16.
  const Tensor big = integer((std::int64_t{1} << 53) + 1);
  binary(Binary::subtract, big, 1, big);
  CHECK(integer_of(big) == std::int64_t{1} << 53);
  for (const DType dtype : floating_dtypes) {
    CAPTURE(name_of(dtype));
    const Tensor x = Tensor::full({2}, 1, dtype);
    const Tensor product = Tensor::empty({2}, DType::f64);
    binary(Binary::multiply, x, 0.1, product);
    CHECK(product.item({1}) == (dtype == DType::f64 ? 0.1 : static_cast<double>(0.1f)));
    binary(Binary::divide, 0.1, x, product);
    CHECK(product.item({1}) == (dtype == DType::f64 ? 0.1 : static_cast<double>(0.1f)));
  }
  binary(Binary::multiply, i, infinity, out);
  CHECK(out.item({2}) == infinity);
}

TEST_CASE("integers are exact where an operation has an integer form") {
  const std::int64_t odd = (std::int64_t{1} << 53) + 1;
  const Tensor out = integer(0);
  binary(Binary::add, integer(odd), integer(2), out);
  CHECK(integer_of(out) == odd + 2);
  binary(Binary::maximum, integer(odd), integer(odd - 1), out);
  CHECK(integer_of(out) == odd);
  binary(Binary::less, integer(odd - 1), integer(odd), out);
  CHECK(integer_of(out) == 1);
  binary(Binary::bit_and, integer(odd), integer(-1), out);
  CHECK(integer_of(out) == odd);
  unary(Unary::negate, integer(odd), out);
  CHECK(integer_of(out) == -odd);
  unary(Unary::abs, integer(-odd), out);
  CHECK(integer_of(out) == odd);
  unary(Unary::round, integer(odd), out);
  CHECK(integer_of(out) == odd);
  binary(Binary::power, integer(3), integer(39), out);
  CHECK(integer_of(out) == 4052555153018976267);
  binary(Binary::power, integer(-2), integer(3), out);
  CHECK(integer_of(out) == -8);
  for (const auto& [base, expected] : {std::pair{2, 0}, {1, 1}, {-1, -1}, {0, 0}}) {
    binary(Binary::power, integer(base), integer(-3), out);
    CHECK(integer_of(out) == expected);
  }
  // A quotient: true in a floating result, its whole part in an integer one, beyond 2^24 too.
  CHECK(value_of(Binary::divide, 7, 2, DType::i64, DType::f32) == 3.5);
  CHECK(value_of(Binary::divide, -7, 2, DType::i64, DType::i64) == -3);
  CHECK(value_of(Binary::divide, 16777217, 1, DType::i64, DType::i64) == 16777217);
  CHECK(value_of(Binary::divide, 1, 0, DType::i64, DType::f32) == infinity);
}

TEST_CASE("arithmetic is in f64 only beside an f64 operand") {
  const Tensor third = Tensor::full({1}, 3, DType::f32);
  const Tensor one = Tensor::full({1}, 1, DType::f32);
  const Tensor narrow = Tensor::empty({1}, DType::f32);
  const Tensor wide = Tensor::empty({1}, DType::f64);
  binary(Binary::divide, one, third, narrow);
  binary(Binary::divide, one, third, wide);
  CHECK(narrow.item({0}) == static_cast<double>(1.0f / 3.0f));
  CHECK(wide.item({0}) == 1.0 / 3.0);
  // 2^24 + 1 is not a number of f32: it is one in i64, and beside an f64.
  CHECK(value_of(Binary::equal, 16777216, 16777217, DType::f32, DType::boolean) == 1);
  CHECK(value_of(Binary::equal, 16777216, 16777217, DType::i64, DType::boolean) == 0);
  CHECK(value_of(Binary::equal, 16777216, 16777217, DType::f64, DType::boolean) == 0);
}

TEST_CASE("special values") {
  for (const DType dtype : floating_dtypes) {
    CAPTURE(name_of(dtype));
    const auto at = [&](Unary op, double x) { return value_of(op, x, dtype, dtype); };
    const auto of = [&](Binary op, double a, double b) { return value_of(op, a, b, dtype, dtype); };
    for (const Unary op : {Unary::cos, Unary::sin, Unary::relu, Unary::round, Unary::log,
                           Unary::exp, Unary::abs, Unary::sigmoid, Unary::sqrt, Unary::negate})
      CHECK(std::isnan(at(op, not_a_number)));
    for (const Unary op : {Unary::sign, Unary::logical_not, Unary::step})
      CHECK(at(op, not_a_number) == 0);
    const std::vector<std::pair<double, double>> halves{{0.5, 0},   {1.5, 2},   {2.5, 2}, {-0.5, 0},
                                                        {-1.5, -2}, {-2.5, -2}, {0.75, 1}};
    for (const auto& [x, rounded] : halves) CHECK(at(Unary::round, x) == rounded);
    CHECK(std::signbit(at(Unary::round, -0.25)));
    CHECK_FALSE(std::signbit(at(Unary::abs, -0.0)));
    CHECK(std::signbit(at(Unary::negate, 0.0)));
    CHECK(at(Unary::sign, -0.0) == 0);
    CHECK(at(Unary::step, 0.0) == 0);
    CHECK(at(Unary::logical_not, -0.0) == 1);
    CHECK(at(Unary::log, 0) == -infinity);
    CHECK(std::isnan(at(Unary::log, -1)));
    CHECK(std::isnan(at(Unary::sqrt, -1)));
    CHECK(at(Unary::exp, 1000) == infinity);
    CHECK(at(Unary::exp, -1000) == 0);
    CHECK(at(Unary::sigmoid, 1000) == 1);
    CHECK(at(Unary::sigmoid, -1000) == 0);
    CHECK(at(Unary::relu, infinity) == infinity);
    CHECK(of(Binary::divide, 1, 0) == infinity);
    CHECK(of(Binary::power, 0, 0) == 1);
    CHECK(of(Binary::power, 2, -2) == 0.25);
    for (const Binary op : {Binary::maximum, Binary::minimum, Binary::add, Binary::multiply}) {
      CHECK(std::isnan(of(op, not_a_number, 1)));
      CHECK(std::isnan(of(op, 1, not_a_number)));
    }
    for (const Binary op : {Binary::equal, Binary::less, Binary::less_equal})
      CHECK(of(op, not_a_number, not_a_number) == 0);
    CHECK(of(Binary::equal, 0.0, -0.0) == 1);
    CHECK(of(Binary::logical_and, not_a_number, 1) == 1);
    CHECK(value_of(Binary::subtract, 1, 0.75, dtype, DType::boolean) == 1);
    CHECK(value_of(Unary::relu, 1e30, dtype, DType::i32) == 2147483647);
    CHECK(value_of(Unary::relu, not_a_number, dtype, DType::boolean) == 1);
  }
}

TEST_CASE("an output may be an input of every operation") {
  for (const DType dtype : all_dtypes) {
    CAPTURE(name_of(dtype));
    const Tensor a = numbers({37, 41}, dtype, "a", true), b = numbers({37, 41}, dtype, "b", true);
    const Tensor apart = Tensor::empty({37, 41}, dtype);
    for (const UnaryCase& c : unary_cases) {
      CAPTURE(c.name);
      unary(c.op, a, apart);
      const Tensor own = scattered(a);
      unary(c.op, own, own);
      CHECK(bitwise_equal(own, apart));
    }
    for (const BinaryCase& c : binary_cases) {
      if (c.op == Binary::bit_and && is_floating(dtype)) continue;
      CAPTURE(c.name);
      binary(c.op, a, b, apart);
      const Tensor first = scattered(a), second = b.clone();
      binary(c.op, first, b, first);
      CHECK(bitwise_equal(first, apart));
      binary(c.op, a, second, second);
      CHECK(bitwise_equal(second, apart));
    }
  }
}

TEST_CASE("results do not depend on the number of threads") {
  const int before = thread_count();
  const Tensor a = random_tensor({301, 997}, DType::f32, "a");
  const auto compute = [&](int threads) {
    set_thread_count(threads);
    const Tensor out = Tensor::empty(a.shape(), DType::bf16);
    unary(Unary::sigmoid, scattered(a), out);
    binary(Binary::add, out, a.narrow(0, 3, 1).expand(a.shape()), out);
    return out;
  };
  const Tensor one = compute(1);
  for (const int threads : {2, 3, 7}) CHECK(bitwise_equal(one, compute(threads)));
  set_thread_count(before);
}

TEST_CASE("operations name the operand they refuse") {
  const Tensor f = Tensor::zeros({2, 3}, DType::f32);
  const Tensor g = Tensor::zeros({3, 2}, DType::f32);
  const Tensor i = Tensor::zeros({2, 3}, DType::i32);
  require_error<ShapeError>([&] { unary(Unary::exp, f, g); }, "exp", "'out'", "[3, 2]", "[2, 3]");
  require_error<ShapeError>([&] { binary(Binary::less, f, g, f); }, "less", "'b'", "[3, 2]");
  require_error<ShapeError>([&] { binary(Binary::less, 1, f, g); }, "less", "'out'", "[3, 2]");
  require_error<TypeError>([&] { binary(Binary::bit_and, i, f, i); }, "bit_and", "'b'", "f32");
  require_error<TypeError>([&] { binary(Binary::bit_and, i, 0.5, i); }, "bit_and", "'b'", "f32");
  require_error<TypeError>([&] { unary(Unary::cos, Tensor(), f); }, "cos", "'a'", "undefined");
  require_error<TypeError>([&] { binary(Binary::add, Tensor(), 1, f); }, "add", "'a'", "undefined");
  require_error<ShapeError>([&] { select(g, f, f, f); }, "select", "'a'");
  require_error<ShapeError>([&] { f.expand({2, 6}); }, "expand", "[2, 3]", "[2, 6]");
  require_error<ShapeError>([&] { f.expand({2, 3, 1}); }, "expand", "[2, 3, 1]");
  const Tensor wide = Tensor::zeros({1, 3}, DType::f32).expand({2, 3});
  const auto refused = [&](const std::function<void()>& write) {
    require_error<StrideError>(write, "expanded", "[2, 3]", "[0, 1]", "contiguous()");
  };
  refused([&] { fill(wide, 1); });
  refused([&] { copy(f, wide); });
  refused([&] { unary(Unary::exp, f, wide); });
  refused([&] { binary(Binary::add, f, f, wide); });
  refused([&] { select(f, f, f, wide); });
  refused([&] { add(1, f, 1, f, wide); });
  CHECK(to_values(wide) == std::vector<double>(6, 0));
}

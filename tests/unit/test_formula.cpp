// SPDX-License-Identifier: MIT
// ranks: 1
#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/autodiff/formula.hpp"

using namespace tessera;

TEST_CASE("what is printed is what is evaluated") {
  const Formula a = Formula::symbol("a"), b = Formula::symbol("b");
  const Symbols values{{"a", 12}, {"b", 4}};
  struct Row {
    Formula formula;
    const char* text;
    std::int64_t value;
  };
  const std::vector<Row> rows{
      {a + b, "a + b", 16},           {a - (b + 1), "a - (b + 1)", 7},
      {(a + b) * 2, "(a + b) 2", 32}, {a / b * 2, "a/b 2", 6},
      {a / (b * 1), "a/b", 3},        {a / (b / 2), "a/(b/2)", 6},
      {1 * a + 0, "a", 12},           {Formula::lcm(a, b + 1), "lcm(a, b + 1)", 60}};
  for (const Row& row : rows) {
    CHECK(row.formula.text() == row.text);
    CHECK(row.formula.evaluate(values) == row.value);
  }
}

TEST_CASE("unknown symbols and divisions with a rest are errors") {
  const Formula a = Formula::symbol("a");
  require_error<UsageError>([&] { a.evaluate({}); }, "symbol a");
  require_error<AssertionError>([&] { (a / 5).evaluate({{"a", 12}}); }, "a/5", "12/5");
}

// SPDX-License-Identifier: MIT
#include "tessera/autodiff/formula.hpp"

#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "tessera/runtime/error.hpp"

namespace tessera {

// A sum, a product ... or, with operation ' ', a leaf.
struct Formula::Node {
  std::string text;
  std::string symbol;
  int binds;  // how strongly its outermost operation binds: 1 sum, 2 product, 3 leaf
  std::function<std::int64_t(const Symbols&)> value;
  bool is_one = false, is_zero = false;
};

Formula::Formula(std::int64_t constant)
    : node_(std::make_shared<const Node>(Node{fmt::format("{}", constant), "", 3,
                                              [constant](const Symbols&) { return constant; },
                                              constant == 1, constant == 0})) {}

Formula Formula::symbol(std::string name) {
  auto value = [name](const Symbols& symbols) {
    const auto entry = symbols.find(name);
    if (entry == symbols.end())
      throw UsageError(
          {.problem = fmt::format("the symbol {} has no value", name), .operation = "Formula"});
    return entry->second;
  };
  std::string text = name;
  return Formula(std::make_shared<const Node>(Node{std::move(text), std::move(name), 3, value}));
}

Formula Formula::function(std::string text, std::function<std::int64_t(const Symbols&)> value) {
  return Formula(std::make_shared<const Node>(Node{std::move(text), "", 3, std::move(value)}));
}

Formula Formula::lcm(const Formula& a, const Formula& b) {
  return function(fmt::format("lcm({}, {})", a.text(), b.text()), [a, b](const Symbols& symbols) {
    return std::lcm(a.evaluate(symbols), b.evaluate(symbols));
  });
}

std::int64_t Formula::evaluate(const Symbols& symbols) const {
  return node_->value(symbols);
}
std::string Formula::text() const {
  return node_->text;
}
std::string Formula::symbol_name() const {
  return node_->symbol;
}

Formula Formula::binary(const Formula& a, const Formula& b, char operation) {
  const int binds = operation == '+' || operation == '-' ? 1 : 2;
  const auto bracketed = [](const Formula& f, bool needed) {
    return needed ? fmt::format("({})", f.text()) : f.text();
  };
  // a - (b + c) and a / (b c) need their brackets, a + (b + c) does not.
  const bool right =
      b.node_->binds < binds || (b.node_->binds == binds && (operation == '-' || operation == '/'));
  const std::string sign = binds == 1 ? fmt::format(" {} ", operation) : std::string(1, operation);
  const std::string text =
      bracketed(a, a.node_->binds < binds) + (operation == '*' ? " " : sign) + bracketed(b, right);
  auto value = [a, b, operation, text](const Symbols& symbols) -> std::int64_t {
    const std::int64_t x = a.evaluate(symbols);
    const std::int64_t y = b.evaluate(symbols);
    switch (operation) {
      case '+':
        return x + y;
      case '-':
        return x - y;
      case '*':
        return x * y;
      default:
        if (y == 0 || x % y != 0)
          throw AssertionError({.problem = fmt::format("{} is {}/{}, not an integer", text, x, y),
                                .operation = "Formula"});
        return x / y;
    }
  };
  return Formula(std::make_shared<const Node>(Node{text, "", binds, value}));
}

Formula number(std::string text, std::int64_t value) {
  return Formula::function(std::move(text), [value](const Symbols&) { return value; });
}

Formula operator+(const Formula& a, const Formula& b) {
  if (a.node_->is_zero) return b;
  if (b.node_->is_zero) return a;
  return Formula::binary(a, b, '+');
}
Formula operator-(const Formula& a, const Formula& b) {
  return b.node_->is_zero ? a : Formula::binary(a, b, '-');
}
Formula operator*(const Formula& a, const Formula& b) {
  if (a.node_->is_one) return b;
  if (b.node_->is_one) return a;
  return Formula::binary(a, b, '*');
}
Formula operator/(const Formula& a, const Formula& b) {
  return b.node_->is_one ? a : Formula::binary(a, b, '/');
}

}  // namespace tessera

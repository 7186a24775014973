// SPDX-License-Identifier: MIT
// Integer formulas of sizes, mesh and dtype that can be printed and evaluated: one object says what
// the documentation prints and what the checks compare, so that the two cannot differ.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace tessera {

// Values of symbols. Standard ones: dp, R0, R1 (mesh), i, j (own coordinates on cp0, cp1), e (bytes
// of an element of the activations), acc (bytes in at least f32); the others are sizes of tensors.
using Symbols = std::map<std::string, std::int64_t>;

class Formula {
 public:
  Formula(std::int64_t constant = 0);
  static Formula symbol(std::string name);
  // Arithmetic without a short form, under a name that says what it is: "skew(a)".
  static Formula function(std::string text, std::function<std::int64_t(const Symbols&)> value);
  static Formula lcm(const Formula& a, const Formula& b);

  // UsageError for a symbol without value; AssertionError for a division that leaves a rest.
  std::int64_t evaluate(const Symbols& symbols) const;
  std::string text() const;
  // The symbol's name, "" for anything else.
  std::string symbol_name() const;

  friend Formula operator+(const Formula& a, const Formula& b);
  friend Formula operator-(const Formula& a, const Formula& b);
  friend Formula operator*(const Formula& a, const Formula& b);
  friend Formula operator/(const Formula& a, const Formula& b);

 private:
  struct Node;
  explicit Formula(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  static Formula binary(const Formula& a, const Formula& b, char operation);
  std::shared_ptr<const Node> node_;
};

// A number that this rank has found out, under a name: "own windows".
Formula number(std::string text, std::int64_t value);

}  // namespace tessera

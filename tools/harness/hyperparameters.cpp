// SPDX-License-Identifier: MIT
// The one way from hyperparameters that somebody gives to a layer. Those of random problems, which
// the case makes itself, are the pattern.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "tessera/harness/case.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

std::string keys_of(const json& known) {
  std::string keys;
  for (const auto& [key, value] : known.items()) keys += (keys.empty() ? "" : ", ") + key;
  return keys.empty() ? "none" : keys;
}

// Not dump(), which calls itself for what is inside: arrays may be nested without end.
std::string shown(const json& found) {
  if (found.is_object()) return "an object of " + keys_of(found);
  return found.is_array() ? "an array" : found.dump();
}

[[noreturn]] void refuse(const Case& c, std::string problem, const json& found,
                         std::string expected) {
  throw UsageError({.problem = std::move(problem),
                    .operation = "hyperparameters",
                    .found = shown(found),
                    .expected = std::move(expected),
                    .layer = c.name});
}

std::string kind_of(const json& known) {
  if (known.is_boolean()) return "true or false";
  if (known.is_number_integer()) return fmt::format("a whole number from 1 to {}", kMost);
  if (known.is_number()) return known < 0 ? "a number" : "a number from 0";
  return std::string("a value of type ") + known.type_name();
}

bool fits(const json& value, const json& known) {
  if (known.is_number_integer()) return value.is_number_integer() && value >= 1 && value <= kMost;
  if (known.is_number()) return value.is_number() && (value >= 0 || known < 0);
  return value.type() == known.type();
}

void check(const Case& c, const json& given, const json& known) {
  if (!given.is_object())
    refuse(c, "the hyperparameters are no JSON object", given, "an object of " + keys_of(known));
  for (const auto& [key, value] : given.items()) {
    if (!known.contains(key))
      refuse(c, fmt::format("there is no hyperparameter '{}'", key), value, keys_of(known));
    if (!fits(value, known.at(key)))
      refuse(c, fmt::format("hyperparameter '{}' does not fit", key), value,
             kind_of(known.at(key)));
  }
}

}  // namespace

Instance build_layer(const Case& c, const Build& on, const json& hyperparameters) {
  const std::shared_ptr<json> pattern = c.problem({}).hyperparameters;
  const json known = pattern != nullptr ? *pattern : json::object();
  check(c, hyperparameters, known);
  try {
    return c.build(on, hyperparameters);
  } catch (const json::exception& error) {  // a key that is not there and has no default
    const std::string text = error.what();
    refuse(c, "hyperparameters do not fit: " + text.substr(text.find("] ") + 2), hyperparameters,
           keys_of(known));
  }
}

}  // namespace tessera::harness

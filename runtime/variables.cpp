// SPDX-License-Identifier: MIT
#include "tessera/runtime/variables.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "tessera/runtime/error.hpp"

namespace tessera {

std::string text_from_environment(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

bool flag_from_environment(const char* variable) {
  const std::string text = text_from_environment(variable);
  if (text.empty() || text == "0") return false;
  if (text == "1") return true;
  refuse_variable(variable, text, "0 or 1");
}

std::int64_t number_from_environment(const char* variable, std::int64_t otherwise,
                                     std::int64_t least, std::int64_t most) {
  const std::string text = text_from_environment(variable);
  if (text.empty()) return otherwise;
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (result.ec != std::errc() || result.ptr != end || number < least || number > most)
    refuse_variable(variable, text, fmt::format("a whole number from {} to {}", least, most));
  return number;
}

void refuse_variable(const char* variable, std::string_view value, std::string expected) {
  throw UsageError({.problem = "the environment variable cannot have this value",
                    .operation = variable,
                    .found = fmt::format("'{}'", value),
                    .expected = std::move(expected)});
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/runtime/error.hpp"

#include <fmt/format.h>

#include "tessera/runtime/memory.hpp"

namespace tessera {
namespace {

std::string compose(std::string_view kind, const ErrorFacts& f) {
  std::string text(kind);
  if (!f.operation.empty()) text += fmt::format(" in {}", f.operation);
  if (!f.layer.empty()) text += fmt::format(" [layer {}]", f.layer);
  text += ": " + f.problem;
  if (!f.tensor.empty()) text += fmt::format("; tensor '{}'", f.tensor);
  if (!f.found.empty()) text += fmt::format("; found {}", f.found);
  if (!f.expected.empty()) text += fmt::format("; expected {}", f.expected);
  if (!f.hint.empty()) text += fmt::format(" ({})", f.hint);
  return text;
}

}  // namespace

Error::Error(std::string_view kind, ExitCode code, ErrorFacts facts)
    : facts_(std::move(facts)), code_(code), kind_(kind) {
  if (facts_.layer.empty()) facts_.layer = current_scope();
  text_ = compose(kind_, facts_);
}

namespace detail {

void assertion_failed(const char* expression, const char* file, int line,
                      const std::string& values) {
  throw AssertionError({.problem = fmt::format("assertion '{}' failed at {}:{} ({})", expression,
                                               file, line, values),
                        .operation = {},
                        .tensor = {},
                        .found = {},
                        .expected = {},
                        .hint = {},
                        .layer = {}});
}

}  // namespace detail
}  // namespace tessera

// SPDX-License-Identifier: MIT
// Tests of errors match the type and what the message names.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "support/catch.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera {

// True if the text holds every one of the words.
template <class... Words>
bool mentions(const std::exception& error, const Words&... words) {
  const std::string text = error.what();
  return ((text.find(std::string_view(words)) != std::string::npos) && ...);
}

// Runs `action`, which must throw an E that mentions all words; a failure shows the text found.
template <class E, class Action, class... Words>
void require_error(Action&& action, const Words&... words) {
  try {
    action();
  } catch (const E& error) {
    for (const std::string_view word :
         {std::string_view(error.kind()), std::string_view(words)...}) {
      INFO("looked for '" << word << "' in: " << error.what());
      CHECK(mentions(error, word));
    }
    return;
  }
  FAIL("nothing was thrown");
}

}  // namespace tessera

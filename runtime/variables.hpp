// SPDX-License-Identifier: MIT
// Environment variables. One that is empty is as one that is not set; a value that a variable
// cannot have is a UsageError that names variable, value and what is expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

std::string text_from_environment(const char* variable);
// 1 or 0; false if it is not set.
bool flag_from_environment(const char* variable);
std::int64_t number_from_environment(const char* variable, std::int64_t otherwise,
                                     std::int64_t least, std::int64_t most);
[[noreturn]] void refuse_variable(const char* variable, std::string_view value,
                                  std::string expected);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// What the library has to say. It prints nothing itself: without a sink, as at the start, nothing
// is said. Errors are exceptions; the log is for what is worth knowing beside them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace tessera {

enum class LogLevel : std::uint8_t { debug, info, warning, error };
std::string_view name_of(LogLevel level);  // "debug", "info", "warning", "error"
std::optional<LogLevel> parse_log_level(std::string_view text);

// Gets one line without its end, on the rank and the thread that has something to say, one at a
// time. It must not call set_log_sink; what it throws is dropped. An empty one makes silence again.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;
void set_log_sink(LogSink sink);

// For the library, and for layers of one's own.
void log_line(LogLevel level, std::string_view line) noexcept;

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/runtime/log.hpp"

#include <array>
#include <mutex>
#include <utility>

namespace tessera {
namespace {

constexpr std::array<std::string_view, 4> kNames{"debug", "info", "warning", "error"};

struct Log {
  std::mutex mutex;
  LogSink sink;
};

// Never destroyed: threads may outlive main().
Log& the_log() {
  static Log* instance = new Log;
  return *instance;
}

}  // namespace

std::string_view name_of(LogLevel level) {
  return kNames[static_cast<std::size_t>(level)];
}

std::optional<LogLevel> parse_log_level(std::string_view text) {
  for (std::size_t k = 0; k < kNames.size(); ++k)
    if (text == kNames[k]) return static_cast<LogLevel>(k);
  return std::nullopt;
}

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(the_log().mutex);
  the_log().sink = std::move(sink);
}

void log_line(LogLevel level, std::string_view line) noexcept {
  try {
    const std::lock_guard lock(the_log().mutex);
    if (the_log().sink) the_log().sink(level, line);
  } catch (...) {  // whatever a sink cannot do, the work goes on
  }
}

}  // namespace tessera

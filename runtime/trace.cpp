// SPDX-License-Identifier: MIT
#include "tessera/runtime/trace.hpp"

#include <array>
#include <chrono>
#include <mutex>
#include <utility>

#include "tessera/runtime/memory.hpp"

namespace tessera::trace {
namespace {

struct Recorder {
  std::mutex mutex;
  std::vector<Event> events;
};

// Never destroyed: spans of static lifetime may outlive any destruction order.
Recorder& recorder() {
  static Recorder* instance = new Recorder;
  return *instance;
}

}  // namespace

std::string_view name_of(Kind kind) {
  constexpr std::array<std::string_view, 5> names{"layer", "backward", "block", "wait", "message"};
  return names[static_cast<std::size_t>(kind)];
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void add(Event event) {
  std::lock_guard lock(recorder().mutex);
  recorder().events.push_back(std::move(event));
}

std::vector<Event> take() {
  std::lock_guard lock(recorder().mutex);
  return std::exchange(recorder().events, {});
}

void Span::start(Kind kind, std::string_view name) {
  if (name.empty()) return;
  kind_ = kind;
  name_ = name;
  begin_ = now();
}

void Span::finish() {
  add({.kind = kind_,
       .name = std::move(name_),
       .scope = current_scope(),
       .begin = begin_,
       .end = now()});
}

}  // namespace tessera::trace

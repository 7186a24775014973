// SPDX-License-Identifier: MIT
// The timeline of this process: what it computed, sent and waited for, and when. Off by default;
// then a span costs one branch.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::trace {

// What an event is about; slices nest by time, messages overlap anything.
enum class Kind : std::uint8_t { layer, backward, block, wait, message };
std::string_view name_of(Kind kind);

// Seconds are those of the machine's steady clock.
struct Event {
  Kind kind = Kind::layer;
  std::string name;   // of the scope, block or operation
  std::string scope;  // module path around it
  double begin = 0, end = 0;
  // Of messages only: from being posted until its wait ended.
  std::string axis = {}, label = {};
  std::int64_t sequence = -1, bytes = 0;
};

namespace detail {
inline std::atomic<bool> recording = false;
}
inline bool enabled() {
  return detail::recording.load(std::memory_order_relaxed);
}
double now();
void add(Event event);
std::vector<Event> take();  // all events so far, in order of their ends; forgets them

// Records while it lives, if wanted.
class Recording {
 public:
  explicit Recording(bool wanted) : before_(enabled()) { detail::recording = wanted; }
  ~Recording() { detail::recording = before_; }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  bool before_;
};

// A slice from here to the end of the block.
class Span {
 public:
  Span(Kind kind, std::string_view name) {
    if (enabled()) start(kind, name);
  }
  ~Span() {
    if (begin_ >= 0) finish();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void start(Kind kind, std::string_view name);
  void finish();
  Kind kind_ = Kind::layer;
  double begin_ = -1;
  std::string name_;
};

}  // namespace tessera::trace

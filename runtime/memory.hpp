// SPDX-License-Identifier: MIT
// The memory ledger: every storage allocation is booked under the module path (scope) and the
// purpose that were current when it was made.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/runtime/trace.hpp"

namespace tessera {

enum class Purpose : std::uint8_t {
  activation,
  saved,
  parameter,
  gradient,
  communication,
  workspace
};
inline constexpr int kPurposes = 6;
std::string_view name_of(Purpose purpose);

// Pushes one name onto this thread's module path ("trunk.layers.0.tri_mul_out"), and is a slice of
// the timeline; "" changes nothing.
class Scope {
 public:
  explicit Scope(std::string_view name);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::size_t length_before_;
  trace::Span span_;
};
const std::string& current_scope();

// Sets the purpose of the allocations that this thread makes while it lives.
class PurposeScope {
 public:
  explicit PurposeScope(Purpose purpose);
  ~PurposeScope();
  PurposeScope(const PurposeScope&) = delete;
  PurposeScope& operator=(const PurposeScope&) = delete;

 private:
  Purpose before_;
};
Purpose current_purpose();

// Scope and purpose of a thread, to hand to worker threads.
struct LedgerContext {
  std::string scope;
  Purpose purpose = Purpose::activation;
};
LedgerContext ledger_context();
class LedgerContextScope {
 public:
  explicit LedgerContextScope(const LedgerContext& context);
  ~LedgerContextScope();
  LedgerContextScope(const LedgerContextScope&) = delete;
  LedgerContextScope& operator=(const LedgerContextScope&) = delete;

 private:
  LedgerContext before_;
};

struct MemoryCount {
  std::int64_t live = 0;  // bytes
  std::int64_t peak = 0;  // bytes, since the last reset
};

// One per process. All functions are thread safe.
namespace memory_ledger {

using Key = std::pair<std::string, Purpose>;

MemoryCount total();
MemoryCount total(Purpose purpose);
std::map<Key, MemoryCount> entries();
void reset_peak();  // peak := live, everywhere

// Refuses allocations that would bring the live total above `bytes` (0 = no limit) with
// OutOfMemoryError, so that tests and users can bound a run.
void set_limit(std::int64_t bytes);

// One booked allocation; releases itself. Used by Storage only.
class Booking {
 public:
  Booking(std::int64_t bytes, Purpose purpose);  // scope: the current one
  ~Booking();
  Booking(const Booking&) = delete;
  Booking& operator=(const Booking&) = delete;
  void relabel(Purpose purpose);
  Purpose purpose() const { return purpose_; }

 private:
  std::int64_t bytes_;
  Purpose purpose_;
  void* entry_;
};

}  // namespace memory_ledger
}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/runtime/memory.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "tessera/runtime/out_of_memory.hpp"

namespace tessera {
namespace {

thread_local std::string t_scope;
thread_local Purpose t_purpose = Purpose::activation;

struct Ledger {
  std::mutex mutex;
  MemoryCount total;
  std::array<MemoryCount, kPurposes> by_purpose;
  std::map<memory_ledger::Key, MemoryCount> entries;
  std::int64_t limit = 0;
};

// Never destroyed: tensors of static lifetime may outlive any destruction order.
Ledger& ledger() {
  static Ledger* instance = new Ledger;
  return *instance;
}

void add(MemoryCount& count, std::int64_t bytes) {
  count.live += bytes;
  if (count.live > count.peak) count.peak = count.live;
}

}  // namespace

std::string_view name_of(Purpose purpose) {
  constexpr std::array<std::string_view, kPurposes> names{
      "activation", "saved", "parameter", "gradient", "communication", "workspace"};
  return names[static_cast<std::size_t>(purpose)];
}

Scope::Scope(std::string_view name)
    : length_before_(t_scope.size()), span_(trace::Kind::layer, name) {
  if (!t_scope.empty() && !name.empty()) t_scope += '.';
  t_scope += name;
}
Scope::~Scope() {
  t_scope.resize(length_before_);
}
const std::string& current_scope() {
  return t_scope;
}

PurposeScope::PurposeScope(Purpose purpose) : before_(t_purpose) {
  t_purpose = purpose;
}
PurposeScope::~PurposeScope() {
  t_purpose = before_;
}
Purpose current_purpose() {
  return t_purpose;
}

LedgerContext ledger_context() {
  return {t_scope, t_purpose};
}
LedgerContextScope::LedgerContextScope(const LedgerContext& context) : before_(ledger_context()) {
  t_scope = context.scope;
  t_purpose = context.purpose;
}
LedgerContextScope::~LedgerContextScope() {
  t_scope = before_.scope;
  t_purpose = before_.purpose;
}

namespace memory_ledger {

MemoryCount total() {
  std::lock_guard lock(ledger().mutex);
  return ledger().total;
}

MemoryCount total(Purpose purpose) {
  std::lock_guard lock(ledger().mutex);
  return ledger().by_purpose[static_cast<std::size_t>(purpose)];
}

std::map<Key, MemoryCount> entries() {
  std::lock_guard lock(ledger().mutex);
  return ledger().entries;
}

void reset_peak() {
  std::lock_guard lock(ledger().mutex);
  auto reset = [](MemoryCount& count) { count.peak = count.live; };
  reset(ledger().total);
  for (auto& count : ledger().by_purpose) reset(count);
  for (auto& [key, count] : ledger().entries) reset(count);
}

void set_limit(std::int64_t bytes) {
  std::lock_guard lock(ledger().mutex);
  ledger().limit = bytes;
}

Booking::Booking(std::int64_t bytes, Purpose purpose) : bytes_(bytes), purpose_(purpose) {
  Ledger& l = ledger();
  std::lock_guard lock(l.mutex);
  if (l.limit > 0 && l.total.live + bytes > l.limit)
    out_of_memory(
        fmt::format("{} bytes asked for {}, {} live, limit {}: {} bytes missing", bytes,
                    name_of(purpose), l.total.live, l.limit, l.total.live + bytes - l.limit),
        l.entries);
  auto& entry = *l.entries.try_emplace({t_scope, purpose}).first;
  add(entry.second, bytes);
  add(l.by_purpose[static_cast<std::size_t>(purpose)], bytes);
  add(l.total, bytes);
  entry_ = &entry;  // nodes of a std::map stay where they are
}

Booking::~Booking() {
  Ledger& l = ledger();
  std::lock_guard lock(l.mutex);
  static_cast<std::pair<const Key, MemoryCount>*>(entry_)->second.live -= bytes_;
  l.by_purpose[static_cast<std::size_t>(purpose_)].live -= bytes_;
  l.total.live -= bytes_;
}

void Booking::relabel(Purpose purpose) {
  if (purpose == purpose_) return;
  Ledger& l = ledger();
  std::lock_guard lock(l.mutex);
  auto* from = static_cast<std::pair<const Key, MemoryCount>*>(entry_);
  auto& to = *l.entries.try_emplace({from->first.first, purpose}).first;
  from->second.live -= bytes_;
  l.by_purpose[static_cast<std::size_t>(purpose_)].live -= bytes_;
  add(to.second, bytes_);
  add(l.by_purpose[static_cast<std::size_t>(purpose)], bytes_);
  entry_ = &to;
  purpose_ = purpose;
}

}  // namespace memory_ledger
}  // namespace tessera

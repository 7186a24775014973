// SPDX-License-Identifier: MIT
#include "tessera/harness/ledgers.hpp"

#include <fmt/format.h>

#include <map>

namespace tessera::harness {
namespace {

using Texts = std::map<std::string, std::string>;

// What the functions of the layer keep after forward and take at most, by purpose and module path.
Texts memory_of(const CaseResult& r) {
  Texts all;
  for (const MemoryEntry& e : r.memory) {
    if (!e.scope.starts_with(r.name + ".")) continue;
    const std::string name = fmt::format("{} of {}", name_of(e.purpose), e.scope);
    if (e.live != 0) all[name] = fmt::format("{} bytes", e.live);
    if (e.purpose != Purpose::workspace) all["peak: " + name] = fmt::format("{} bytes", e.peak);
  }
  return all;
}

// By operation and axis.
void add_messages(Texts& all, const char* pass, const std::vector<CommTotal>& totals) {
  for (const CommTotal& t : totals)
    all[fmt::format("{} {} on {}", pass, t.op, t.axis)] =
        fmt::format("{} times, {} messages, {} bytes", t.count, t.messages, t.bytes);
}

Texts texts_of(const CaseResult& r) {
  Texts all = memory_of(r);
  all["saved tensors"] = fmt::format("{} bytes", r.saved_bytes);
  all["kept after forward"] = fmt::format("{} bytes", r.saved_measured);
  add_messages(all, "forward", r.forward);
  add_messages(all, "backward", r.backward);
  return all;
}

std::string value(const Texts& texts, const std::string& name) {
  const auto entry = texts.find(name);
  return entry == texts.end() ? "nothing" : entry->second;
}

}  // namespace

std::vector<std::string> compare_ledgers(const CaseResult& found, const CaseResult& expected) {
  const Texts own = texts_of(found), other = texts_of(expected);
  Texts all = own;
  all.insert(other.begin(), other.end());
  std::vector<std::string> differences;
  for (const auto& [name, text] : all)
    if (value(own, name) != value(other, name))
      differences.push_back(
          fmt::format("{}: {}, expected {}", name, value(own, name), value(other, name)));
  return differences;
}

}  // namespace tessera::harness

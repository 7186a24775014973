// SPDX-License-Identifier: MIT
#include "tessera/runtime/out_of_memory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "tessera/runtime/error.hpp"

namespace tessera {
namespace {

// "trunk.layers.0 4096 (saved)", of the three scopes and purposes with most live bytes.
std::vector<std::string> largest(const std::map<memory_ledger::Key, MemoryCount>& entries) {
  constexpr std::size_t most = 3;
  std::vector<std::pair<memory_ledger::Key, std::int64_t>> live;
  for (const auto& [key, count] : entries)
    if (count.live > 0) live.emplace_back(key, count.live);
  std::stable_sort(live.begin(), live.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  live.resize(std::min(live.size(), most));
  std::vector<std::string> lines;
  for (const auto& [key, bytes] : live)
    lines.push_back(fmt::format("{} {} bytes ({})",
                                key.first.empty() ? "outside layers" : key.first, bytes,
                                name_of(key.second)));
  return lines;
}

}  // namespace

void out_of_memory(std::string problem, const std::map<memory_ledger::Key, MemoryCount>& entries) {
  const std::vector<std::string> lines = largest(entries);
  throw OutOfMemoryError(
      {.problem = std::move(problem),
       .operation = "allocate",
       .found = lines.empty() ? "" : fmt::format("most is held by {}", fmt::join(lines, ", ")),
       .hint = "use more ranks or a smaller problem"});
}

}  // namespace tessera

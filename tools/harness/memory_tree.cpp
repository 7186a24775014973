// SPDX-License-Identifier: MIT
#include "tessera/harness/memory_tree.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/harness/report.hpp"
#include "tessera/mesh/collectives.hpp"

namespace tessera::harness {
namespace {

using nlohmann::json;

// Indented by depth, with the last name of the path. A parent without memory of its own has its
// line too.
void append_path(std::vector<std::pair<std::string, std::string>>& lines,
                 const std::string& scope) {
  for (std::size_t end = 0, depth = 0; end != std::string::npos; ++depth) {
    const std::size_t begin = depth == 0 ? 0 : end + 1;
    end = scope.find('.', begin);
    const std::string path = scope.substr(0, end);
    const auto known = [&](const auto& line) { return line.first == path; };
    if (std::any_of(lines.begin(), lines.end(), known)) continue;
    const std::string name = path.substr(begin);
    lines.emplace_back(path, std::string(2 * depth, ' ') +
                                 (name.empty() ? "(inputs, parameters, results)" : name));
  }
}

}  // namespace

std::vector<MemoryEntry> memory_over_ranks(const DeviceMesh& mesh, const MemoryEntries& forward,
                                           const MemoryEntries& end) {
  json own = json::array();
  for (const auto& [key, count] : end) {
    if (count.peak == 0) continue;
    const auto entry = forward.find(key);
    const std::int64_t live = entry == forward.end() ? 0 : entry->second.live;
    own.push_back({key.first, static_cast<int>(key.second), live, count.peak});
  }
  MemoryEntries largest;
  for (const std::string& text : gather_strings(mesh, own.dump()))
    for (const json& e : json::parse(text)) {
      MemoryCount& count =
          largest[{e[0].get<std::string>(), static_cast<Purpose>(e[1].get<int>())}];
      count.live = std::max(count.live, e[2].get<std::int64_t>());
      count.peak = std::max(count.peak, e[3].get<std::int64_t>());
    }
  json merged = json::array();
  for (const auto& [key, count] : largest)
    merged.push_back({key.first, static_cast<int>(key.second), count.live, count.peak});
  std::vector<MemoryEntry> all;
  for (const json& e : json::parse(broadcast_string(mesh, merged.dump())))
    all.push_back({e[0].get<std::string>(), static_cast<Purpose>(e[1].get<int>()),
                   e[2].get<std::int64_t>(), e[3].get<std::int64_t>()});
  return all;
}

std::string memory_table(const std::string& title, const std::vector<MemoryEntry>& entries) {
  std::vector<std::pair<std::string, std::string>> paths;
  for (const MemoryEntry& e : entries) append_path(paths, e.scope);
  std::string text = fmt::format("\nmemory of {}, bytes per rank, the largest over ranks\n", title);
  text += fmt::format("{:<50} {:<14} {:>14} {:>10}\n", "path", "purpose", "after forward", "peak");
  for (const auto& [path, name] : paths) {
    std::string shown = name;
    for (const MemoryEntry& e : entries) {
      if (e.scope != path) continue;
      text += fmt::format("{:<50} {:<14} {:>14} {:>10}\n", shown, name_of(e.purpose),
                          format_bytes(e.live), format_bytes(e.peak));
      shown.clear();
    }
    if (!shown.empty()) text += shown + "\n";
  }
  return text;
}

}  // namespace tessera::harness

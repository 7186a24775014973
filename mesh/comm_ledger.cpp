// SPDX-License-Identifier: MIT
#include "tessera/mesh/comm_ledger.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tessera {

// Files of this source tree are named from its root.
std::string format(const CallSite& where) {
  constexpr std::string_view own = __FILE__;
  constexpr std::string_view root = own.substr(0, own.rfind("mesh/"));
  std::string_view file = where.file_name();
  if (file.starts_with(root)) file.remove_prefix(root.size());
  return fmt::format("{}:{}", file, where.line());
}

std::vector<CommTotal> totals(const std::vector<CommRecord>& records) {
  std::vector<CommTotal> sums;
  for (const CommRecord& r : records) {
    auto sum = std::find_if(sums.begin(), sums.end(),
                            [&](const CommTotal& t) { return t.op == r.op && t.axis == r.axis; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), CommTotal{.op = r.op, .axis = r.axis});
    sum->count += 1;
    sum->messages += r.messages;
    sum->bytes += r.bytes;
  }
  return sums;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/mesh/comm_ledger.hpp"

#include <algorithm>

namespace tessera {

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

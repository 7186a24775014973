// SPDX-License-Identifier: MIT
// Waits with a deadline, and agreement on what all ranks are about to do. For mesh/ only.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/mesh/device_mesh.hpp"

namespace tessera {

// Whom a wait is for.
struct Missing {
  std::set<int> silent;     // nothing came from them
  std::set<int> not_taken;  // they did not take their message
};

// Polls until ready(). On expiry of the mesh's limit, or when another rank reports that it gave up,
// the ranks that wait tell each other where they are, and each throws a TimeoutError with all that.
void wait_until(const DeviceMesh& mesh, const CommRecord& step, const std::function<bool()>& ready,
                const std::function<Missing()>& missing);

// Every rank gives a text, rank 0 judges them all (by rank), and every rank gets the verdict.
using Judge = std::function<std::string(const std::vector<std::string>&)>;
std::string judged(const DeviceMesh& mesh, const CommRecord& step, std::string text,
                   const Judge& judge);

// "ranks 0-2, 5: this; rank 3: that": the most frequent text first.
std::string grouped(const std::vector<std::pair<int, std::string>>& texts);
std::string ranks_text(const std::set<int>& ranks);  // "rank 3", "ranks 0-2, 5"
std::string place_of(const CommRecord& step);        // operation, axis, label, layer, call site

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/mesh/activity.hpp"

#include <fmt/format.h>

#include <chrono>
#include <mutex>

#include "tessera/mesh/watch.hpp"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

struct Board {
  std::mutex mutex;
  Activity activity;
  Clock::time_point changed = Clock::now();
};

// Never destroyed: a watching thread may outlive main().
Board& board() {
  static Board* instance = new Board;
  return *instance;
}

}  // namespace

Activity current_activity() {
  std::lock_guard lock(board().mutex);
  Activity copy = board().activity;
  copy.since = std::chrono::duration<double>(Clock::now() - board().changed).count();
  return copy;
}

std::string describe(const Activity& a) {
  if (a.step.op.empty()) return "no operation on a mesh so far\n";
  return fmt::format(
      "rank {} of {}, {} {}\n{:.1f} s ago\n{} operations have ended, {} messages and {} bytes were "
      "sent in them\n",
      a.rank, a.ranks, a.in_flight ? "in" : "past", place_of(a.step), a.since, a.totals.count,
      a.totals.messages, a.totals.bytes);
}

namespace activity {

void begin(const CommRecord& step, int rank, int ranks) {
  std::lock_guard lock(board().mutex);
  Activity& a = board().activity;
  a.rank = rank;
  a.ranks = ranks;
  a.step = step;
  a.in_flight = true;
  board().changed = Clock::now();
}

void end(const CommRecord& step) {
  std::lock_guard lock(board().mutex);
  Activity& a = board().activity;
  a.totals.count += 1;
  a.totals.messages += step.messages;
  a.totals.bytes += step.bytes;
  if (a.step.sequence != step.sequence) return;  // a later one has begun
  a.in_flight = false;
  board().changed = Clock::now();
}

}  // namespace activity
}  // namespace tessera

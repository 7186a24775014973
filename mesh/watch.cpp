// SPDX-License-Identifier: MIT
#include "tessera/mesh/watch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tessera/mesh/door.hpp"
#include "tessera/mesh/mailbox.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/log.hpp"

namespace tessera {
namespace {

constexpr double kListenAfter = 0.2;   // seconds of waiting before others are listened to
constexpr double kAnswerWithin = 2.0;  // seconds in which waiting ranks say where they are

// Between polls: first only yield, since the peer may need this core, then sleep ever longer.
void pause_after(std::int64_t polls) {
  constexpr std::int64_t kYields = 1000;
  if (polls < kYields) return std::this_thread::yield();
  const std::int64_t step = std::min<std::int64_t>((polls - kYields) / 20, 9);
  std::this_thread::sleep_for(std::chrono::microseconds(5 + 5 * step));
}

using Places = std::vector<std::pair<int, std::string>>;

// Tells all where this rank waits and collects where they wait, until all have answered or the
// time is up.
Places exchange_places(const DeviceMesh& mesh, const std::string& own, Places heard) {
  const DeviceMesh::State& state = mesh.state();
  if (!state.mailbox) return {{state.rank, own}};
  for (int peer = 0; peer < mesh.ranks(); ++peer)
    if (peer != state.rank) state.mailbox->send(peer, Mailbox::Subject::stall, own);
  const double begin = state.seconds();
  const auto wanted = static_cast<std::size_t>(mesh.ranks() - 1);
  while (heard.size() < wanted && state.seconds() - begin < kAnswerWithin) {
    if (auto letter = state.mailbox->take(-1, Mailbox::Subject::stall))
      heard.emplace_back(letter->peer, std::move(letter->text));
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  heard.emplace_back(state.rank, own);
  return heard;
}

std::string describe_places(const DeviceMesh& mesh, const Places& heard) {
  std::set<int> unknown;
  for (int rank = 0; rank < mesh.ranks(); ++rank) unknown.insert(rank);
  for (const auto& [rank, place] : heard) unknown.erase(rank);
  std::string text = "waiting are " + grouped(heard);
  if (!unknown.empty())
    text +=
        fmt::format("; {} did not answer, and compute{}, {} elsewhere or gone", ranks_text(unknown),
                    unknown.size() == 1 ? "s" : "", unknown.size() == 1 ? "is" : "are");
  return text;
}

[[noreturn]] void give_up(const DeviceMesh& mesh, const CommRecord& step, const Missing& missing,
                          double waited, Places heard) {
  std::string problem = fmt::format("rank {} waited {:.1f} s in vain", mesh.rank(), waited);
  if (!missing.silent.empty())
    problem += fmt::format("; nothing came from rank(s) {}", fmt::join(missing.silent, ", "));
  if (!missing.not_taken.empty())
    problem +=
        fmt::format("; rank(s) {} did not take their message", fmt::join(missing.not_taken, ", "));
  heard = exchange_places(mesh, place_of(step), std::move(heard));
  const TimeoutError error(
      {.problem = problem,
       .operation = step.op,
       .tensor = step.label,
       .found = fmt::format("axis {}, operation number {} of {}; {}", step.axis, step.sequence,
                            mesh.describe(), describe_places(mesh, heard)),
       .hint = "the odd rank out is the one to look at; TESSERA_TIMEOUT_S sets the "
               "limit",
       .layer = step.scope});
  log_line(LogLevel::error, error.what());
  throw error;
}

}  // namespace

void wait_until(const DeviceMesh& mesh, const CommRecord& step, const std::function<bool()>& ready,
                const std::function<Missing()>& missing) {
  const DeviceMesh::State& state = mesh.state();
  const double begin = state.seconds();
  for (std::int64_t polls = 0; !ready(); ++polls) {
    const double waited = state.seconds() - begin;
    if (state.timeout_s > 0 && waited > state.timeout_s) give_up(mesh, step, missing(), waited, {});
    if (state.mailbox && waited > kListenAfter)
      if (auto letter = state.mailbox->take(-1, Mailbox::Subject::stall))
        give_up(mesh, step, missing(), waited, {{letter->peer, std::move(letter->text)}});
    pause_after(polls);
  }
}

std::string judged(const DeviceMesh& mesh, const CommRecord& step, std::string text,
                   const Judge& judge) {
  Mailbox& mailbox = *mesh.state().mailbox;
  if (mesh.rank() != 0) {
    mailbox.send(0, Mailbox::Subject::question, std::move(text));
    std::string verdict;
    const auto ready = [&] {
      auto letter = mailbox.take(0, Mailbox::Subject::verdict);
      if (letter) verdict = std::move(letter->text);
      return letter.has_value();
    };
    wait_until(mesh, step, ready, [] { return Missing{{0}, {}}; });
    return verdict;
  }
  std::vector<std::string> texts(static_cast<std::size_t>(mesh.ranks()));
  texts[0] = std::move(text);
  Missing missing;
  for (int rank = 1; rank < mesh.ranks(); ++rank) missing.silent.insert(rank);
  const auto ready = [&] {
    std::erase_if(missing.silent, [&](int rank) {
      auto letter = mailbox.take(rank, Mailbox::Subject::question);
      if (letter) texts[static_cast<std::size_t>(rank)] = std::move(letter->text);
      return letter.has_value();
    });
    return missing.silent.empty();
  };
  wait_until(mesh, step, ready, [&] { return missing; });
  std::string verdict = judge(texts);
  for (int rank = 1; rank < mesh.ranks(); ++rank)
    mailbox.send(rank, Mailbox::Subject::verdict, verdict);
  return verdict;
}

std::string ranks_text(const std::set<int>& ranks) {
  std::string text;
  for (auto first = ranks.begin(); first != ranks.end();) {
    auto last = first;
    auto next = std::next(first);
    while (next != ranks.end() && *next == *last + 1) last = next++;
    if (!text.empty()) text += ", ";
    text += first == last ? fmt::format("{}", *first) : fmt::format("{}-{}", *first, *last);
    first = next;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string grouped(const std::vector<std::pair<int, std::string>>& texts) {
  std::vector<std::pair<std::set<int>, std::string>> groups;
  for (const auto& [rank, text] : texts) {
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.second == text; });
    if (group == groups.end()) group = groups.insert(group, {{}, text});
    group->first.insert(rank);
  }
  std::stable_sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return std::pair(b.first.size(), *a.first.begin()) <
           std::pair(a.first.size(), *b.first.begin());
  });
  std::string all;
  for (const auto& [ranks, text] : groups)
    all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", ranks_text(ranks), text);
  return all;
}

std::string place_of(const CommRecord& step) {
  std::string text = step.op;
  if (!step.axis.empty()) text += " on " + step.axis;
  if (!step.label.empty()) text += fmt::format(" of '{}'", step.label);
  text += fmt::format(", number {}", step.sequence);
  if (!step.scope.empty()) text += ", layer " + step.scope;
  if (step.where.line() != 0) text += ", called at " + format(step.where);
  return text;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/mesh/lockstep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "tessera/mesh/mailbox.hpp"
#include "tessera/mesh/watch.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/memory.hpp"

namespace tessera {
namespace {

// On the wire: place, layer, then what travels, as pairs of key and content. A key is the group of
// a collective, or a peer with the direction of an exchange.
struct Intent {
  std::string place;
  std::string layer;
  std::vector<std::pair<std::string, std::string>> travels;
};

std::string pack(const Intent& intent) {
  std::vector<std::string> fields{intent.place, intent.layer};
  for (const auto& [key, content] : intent.travels) {
    fields.push_back(key);
    fields.push_back(content);
  }
  return pack_fields(fields);
}

Intent unpack(const std::string& text) {
  std::vector<std::string> fields = unpack_fields(text);
  Intent intent{fields.at(0), fields.at(1), {}};
  for (std::size_t k = 2; k + 1 < fields.size(); k += 2)
    intent.travels.emplace_back(fields[k], fields[k + 1]);
  return intent;
}

std::string content_text(DType dtype, std::int64_t elements) {
  return fmt::format("{} x {}", elements, name_of(dtype));
}

using Intents = std::vector<Intent>;

std::string all_places(const Intents& intents, bool with_content) {
  std::vector<std::pair<int, std::string>> places;
  for (std::size_t rank = 0; rank < intents.size(); ++rank) {
    std::string text = intents[rank].place;
    if (with_content)
      for (const auto& [key, content] : intents[rank].travels) text += ", " + content;
    places.emplace_back(static_cast<int>(rank), std::move(text));
  }
  return grouped(places);
}

bool same_place(const Intents& intents) {
  return std::all_of(intents.begin(), intents.end(),
                     [&](const Intent& i) { return i.place == intents.front().place; });
}

std::string judge_collective(const Intents& intents) {
  if (!same_place(intents)) return all_places(intents, true);
  std::map<std::string, std::string> of_group;
  for (const Intent& intent : intents)
    for (const auto& [group, content] : intent.travels)
      if (of_group.try_emplace(group, content).first->second != content)
        return all_places(intents, true);
  return {};
}

// Every message must be expected as it is sent.
std::string judge_exchange(const Intents& intents) {
  if (!same_place(intents)) return all_places(intents, false);
  struct Both {
    std::string sent, expected;
  };
  std::map<std::pair<int, int>, Both> pairs;  // from, to
  for (std::size_t rank = 0; rank < intents.size(); ++rank)
    for (const auto& [key, content] : intents[rank].travels) {
      const int me = static_cast<int>(rank);
      const int peer = std::stoi(key.substr(1));
      const bool sends = key.front() == '>';
      Both& both = pairs[sends ? std::pair(me, peer) : std::pair(peer, me)];
      std::string& list = sends ? both.sent : both.expected;
      list += (list.empty() ? "" : " and ") + content;
    }
  const auto or_nothing = [](const std::string& text) { return text.empty() ? "nothing" : text; };
  for (const auto& [way, both] : pairs)
    if (both.sent != both.expected)
      return fmt::format("rank {} sends {} to rank {}, which expects {}; {}", way.first,
                         or_nothing(both.sent), way.second, or_nothing(both.expected),
                         all_places(intents, false));
  return {};
}

// The layer that most ranks are in.
std::string common_layer(const Intents& intents) {
  std::map<std::string, int> times;
  for (const Intent& intent : intents) ++times[intent.layer];
  return std::max_element(times.begin(), times.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void agree(const DeviceMesh& mesh, const CommRecord& step, Intent intent,
           std::string (*judge)(const Intents&)) {
  intent.place = place_of(step);
  intent.layer = step.scope;
  const std::string verdict =
      judged(mesh, step, pack(intent), [&](const std::vector<std::string>& texts) {
        Intents intents;
        for (const std::string& text : texts) intents.push_back(unpack(text));
        const std::string difference = judge(intents);
        return difference.empty() ? "" : pack_fields({difference, common_layer(intents)});
      });
  if (verdict.empty()) return;
  const std::vector<std::string> fields = unpack_fields(verdict);
  const LedgerContextScope nowhere({});  // the text is the same on all ranks
  throw LockstepError({.problem = fmt::format("the ranks are out of step at operation number {} "
                                              "of {}",
                                              step.sequence, mesh.describe()),
                       .operation = "lockstep",
                       .found = fields.at(0),
                       .expected = "the same operation, with the same content, on all ranks",
                       .layer = fields.at(1)});
}

}  // namespace

void agree_on_collective(const DeviceMesh& mesh, const CommRecord& step, const Content& content) {
  Intent intent;
  intent.travels.emplace_back(std::to_string(content.group),
                              content_text(content.dtype, content.elements));
  agree(mesh, step, std::move(intent), judge_collective);
}

void agree_on_exchange(const DeviceMesh& mesh, const CommRecord& step,
                       const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives) {
  Intent intent;
  const auto add = [&](char direction, int peer, const Tensor& data) {
    if (peer != mesh.rank() && data.numel() > 0)
      intent.travels.emplace_back(fmt::format("{}{}", direction, peer),
                                  content_text(data.dtype(), data.numel()));
  };
  for (const Outgoing& m : sends) add('>', m.peer, m.data);
  for (const Incoming& m : receives) add('<', m.peer, m.data);
  agree(mesh, step, std::move(intent), judge_exchange);
}

}  // namespace tessera

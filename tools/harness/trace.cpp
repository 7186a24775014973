// SPDX-License-Identifier: MIT
#include "tessera/harness/trace.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/mesh/collectives.hpp"

namespace tessera::harness {
namespace {

using nlohmann::ordered_json;
using trace::Event;
using trace::Kind;

struct Span {
  double begin, end;
};

// The same points in time, sorted and without overlaps.
std::vector<Span> merged(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(), [](Span a, Span b) { return a.begin < b.begin; });
  std::vector<Span> all;
  for (const Span& s : spans)
    if (!all.empty() && s.begin <= all.back().end)
      all.back().end = std::max(all.back().end, s.end);
    else
      all.push_back(s);
  return all;
}

std::vector<Span> spans_of(const std::vector<Event>& events, Kind kind) {
  std::vector<Span> spans;
  for (const Event& e : events)
    if (e.kind == kind) spans.push_back({e.begin, e.end});
  return merged(std::move(spans));
}

double length(const std::vector<Span>& spans) {
  double sum = 0;
  for (const Span& s : spans) sum += s.end - s.begin;
  return sum;
}

double common_length(const std::vector<Span>& a, const std::vector<Span>& b) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max(0.0, std::min(a[i].end, b[j].end) - std::max(a[i].begin, b[j].begin));
    ++(a[i].end < b[j].end ? i : j);
  }
  return sum;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Microseconds with three digits.
double micro(double seconds) {
  return std::round(seconds * 1e9) / 1e3;
}

ordered_json slice(const Event& e, int rank) {
  return {{"name", e.name},
          {"cat", trace::name_of(e.kind)},
          {"ph", "X"},
          {"pid", rank},
          {"tid", 0},
          {"ts", micro(e.begin)},
          {"dur", micro(e.end - e.begin)},
          {"args", {{"scope", e.scope}}}};
}

// A message in flight: an asynchronous pair, whose id no other rank uses.
void append_message(ordered_json& list, const Event& e, int rank) {
  ordered_json event{
      {"name", fmt::format("{} {}{}{}", e.name, e.axis, e.label.empty() ? "" : ", ", e.label)},
      {"cat", trace::name_of(e.kind)},
      {"ph", "b"},
      {"id", fmt::format("{}.{}", rank, e.sequence)},
      {"pid", rank},
      {"tid", 0},
      {"ts", micro(e.begin)},
      {"args",
       {{"op", e.name},
        {"axis", e.axis},
        {"label", e.label},
        {"bytes", e.bytes},
        {"sequence", e.sequence},
        {"scope", e.scope}}}};
  list.push_back(event);
  event["ph"] = "e";
  event["ts"] = micro(e.end);
  event.erase("args");
  list.push_back(std::move(event));
}

// What a rank says about itself.
ordered_json timeline_of(const DeviceMesh& mesh, double origin, std::vector<Event> events) {
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;  // outer slices first
  });
  const Overlap overlap = overlap_of(events);
  const int rank = mesh.rank();
  std::string place;
  for (const int c : mesh.coordinate()) place += fmt::format("{}{}", place.empty() ? "" : ", ", c);
  ordered_json list = ordered_json::array();
  const auto name = [&](const char* what, const std::string& text) {
    list.push_back(
        {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", 0}, {"args", {{"name", text}}}});
  };
  name("process_name", fmt::format("rank {} ({})", rank, place));
  name("thread_name", "layers, blocks, waits");
  for (const Event& e : events)
    if (e.kind == Kind::message)
      append_message(list, e, rank);
    else
      list.push_back(slice(e, rank));
  return {{"host", host_name()},
          {"origin", micro(origin)},
          {"in_flight", overlap.in_flight},
          {"hidden", overlap.hidden},
          {"events", std::move(list)}};
}

}  // namespace

Overlap overlap_of(const std::vector<Event>& events) {
  const std::vector<Span> messages = spans_of(events, Kind::message);
  const double in_flight = length(messages);
  return {in_flight, in_flight - common_length(messages, spans_of(events, Kind::wait))};
}

Timelines::Timelines(const DeviceMesh& mesh) : mesh_(mesh) {
  barrier(mesh);
  origin_ = trace::now();
}

TraceFile Timelines::collect(const std::string& command) const {
  const std::vector<std::string> texts =
      gather_strings(mesh_, timeline_of(mesh_, origin_, trace::take()).dump());
  if (texts.empty()) return {};
  std::vector<ordered_json> timelines;
  for (const std::string& text : texts) timelines.push_back(ordered_json::parse(text));
  // Ranks on the host of rank 0 share its clock; others are aligned at the barrier.
  const std::string host = timelines.front()["host"];
  double shared = timelines.front()["origin"];
  for (const ordered_json& own : timelines)
    if (own["host"] == host) shared = std::min(shared, own["origin"].get<double>());

  Overlap sum;
  ordered_json events = ordered_json::array(), ranks = ordered_json::array();
  for (ordered_json& own : timelines) {
    const double origin = own["host"] == host ? shared : own["origin"].get<double>();
    for (ordered_json& e : own["events"]) {
      if (e.contains("ts")) e["ts"] = std::round((e["ts"].get<double>() - origin) * 1e3) / 1e3;
      events.push_back(std::move(e));
    }
    const Overlap overlap{own["in_flight"], own["hidden"]};
    sum.in_flight += overlap.in_flight;
    sum.hidden += overlap.hidden;
    ranks.push_back({{"host", own["host"]},
                     {"seconds_in_flight", overlap.in_flight},
                     {"hidden_percent", overlap.percent()}});
  }
  const ordered_json file{{"displayTimeUnit", "ms"},
                          {"otherData",
                           {{"command", command},
                            {"mesh", mesh_.describe()},
                            {"hidden_percent", sum.percent()},
                            {"ranks", std::move(ranks)}}},
                          {"traceEvents", std::move(events)}};
  return {file.dump() + "\n",
          fmt::format("Communication: in flight {:.4f} s per rank, {:.1f} % of it hidden behind "
                      "computation.\n",
                      sum.in_flight / static_cast<double>(texts.size()), sum.percent())};
}

}  // namespace tessera::harness

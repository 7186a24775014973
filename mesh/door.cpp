// SPDX-License-Identifier: MIT
#include "tessera/mesh/door.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "tessera/mesh/activity.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/trace.hpp"

namespace tessera {
namespace {

bool on_host(const Tensor& tensor) {
  return tensor.device().kind == DeviceKind::cpu;
}

}  // namespace

double timeout_from_environment() {
  const char* text = std::getenv("TESSERA_TIMEOUT_S");
  if (text == nullptr || *text == '\0') return 300;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !std::isfinite(seconds) || seconds < 0)
    throw UsageError({.problem = "not a time limit",
                      .operation = "TESSERA_TIMEOUT_S",
                      .found = fmt::format("'{}'", text),
                      .expected = "seconds, 0 for no limit"});
  return seconds;
}

bool flag_from_environment(const char* variable) {
  const char* text = std::getenv(variable);
  const std::string_view value = text == nullptr ? "" : text;
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  throw UsageError({.problem = "a switch is 0 or 1",
                    .operation = variable,
                    .found = fmt::format("'{}'", value)});
}

Operation::Operation(const DeviceMesh& mesh, OpLabel label, const Content& content) : mesh_(mesh) {
  begin(std::move(label), content.dtype);
  if (mesh.state().lockstep) in_lockstep([&] { agree_on_collective(mesh, record_, content); });
}

Operation::Operation(const DeviceMesh& mesh, OpLabel label, const std::vector<Outgoing>& sends,
                     const std::vector<Incoming>& receives)
    : mesh_(mesh) {
  const DType dtype = !sends.empty()      ? sends.front().data.dtype()
                      : !receives.empty() ? receives.front().data.dtype()
                                          : DType::boolean;
  begin(std::move(label), dtype);
  if (mesh.state().lockstep)
    in_lockstep([&] { agree_on_exchange(mesh, record_, sends, receives); });
}

void Operation::begin(OpLabel label, DType dtype) {
  DeviceMesh::State& state = mesh_.state();
  if (!state.unfinished.empty())
    throw CommStateError(
        {.problem = "an earlier operation on the mesh did not end: " + state.unfinished,
         .operation = label.op,
         .hint = "wait() for every Pending; after a time-out make a new mesh"});
  record_ = {.sequence = state.sequence++,
             .op = label.op,
             .axis = std::move(label.axis),
             .scope = current_scope(),
             .label = std::move(label.label),
             .dtype = dtype,
             .begin = state.seconds(),
             .where = label.where};
  // Different operations never match each other's messages, even if several are in flight.
  tag_ = static_cast<int>(record_.sequence % (std::int64_t{state.communicator.max_tag()} + 1));
  state.records.push_back(record_);
  activity::begin(record_, state.rank, mesh_.ranks());
  if (trace::enabled()) posted_ = trace::now();
}

// Unless the ranks agree, the operation will never end.
template <class Agree>
void Operation::in_lockstep(const Agree& agree) {
  std::string& unfinished = mesh_.state().unfinished;
  unfinished = place_of(record_);
  agree();
  unfinished.clear();
}

Operation::~Operation() {
  if (closed_) return;
  DeviceMesh::State& state = mesh_.state();
  if (state.unfinished.empty()) state.unfinished = place_of(record_);
  for (auto* list : {&sends_, &receives_})
    for (Transfer& t : *list)
      if (!t.done) state.stranded.push_back(std::move(t));
}

void Operation::post(const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives) {
  const DeviceMesh::State& state = mesh_.state();
  const auto travels = [&](const auto& m) { return m.peer != state.rank && m.data.numel() > 0; };
  sends_.clear();
  receives_.clear();
  for (const Outgoing& m : sends) {
    if (!travels(m)) continue;
    record_.messages += 1;
    record_.bytes += m.data.bytes();
    sends_.push_back({.peer = m.peer, .user = m.data});
  }
  for (const Incoming& m : receives)
    if (travels(m)) receives_.push_back({.peer = m.peer, .user = m.data});
  if (state.communicator.size() == 0) {
    const auto has_no_memory = [](const Transfer& t) {
      return t.user.device().kind == DeviceKind::meta;
    };
    const bool counted_only = std::all_of(sends_.begin(), sends_.end(), has_no_memory) &&
                              std::all_of(receives_.begin(), receives_.end(), has_no_memory);
    if (counted_only) {
      sends_.clear();
      receives_.clear();
      return;
    }
    close();
    throw InitError({.problem = "a dry run sends no messages",
                     .operation = record_.op,
                     .found = mesh_.describe()});
  }
  at_step(record_);
  const PurposeScope purpose(Purpose::communication);
  for (Transfer& t : receives_) {
    t.user.bump_version();
    t.wire = on_host(t.user) ? t.user : Tensor::empty(t.user.shape(), t.user.dtype());
    t.request = state.communicator.receive(t.peer, t.wire.data(), t.wire.bytes(), tag_);
  }
  for (Transfer& t : sends_) {
    t.wire = t.user.to(cpu_device);
    t.request = state.communicator.send(t.peer, t.wire.data(), t.wire.bytes(), tag_);
  }
}

bool Operation::test() {
  bool all = true;
  for (Transfer& t : receives_) {
    if (t.done) continue;
    t.done = t.request.test();
    if (t.done && !on_host(t.user)) copy(t.wire, t.user);
    all = all && t.done;
  }
  for (Transfer& t : sends_) {
    if (!t.done) t.done = t.request.test();
    all = all && t.done;
  }
  return all;
}

void Operation::finish() {
  const trace::Span span(trace::Kind::wait, record_.op);
  wait_until(
      mesh_, record_, [this] { return test(); }, [this] { return missing(); });
}

void Operation::close() {
  closed_ = true;
  sends_.clear();
  receives_.clear();
  record_.end = mesh_.state().seconds();
  activity::end(record_);
  std::vector<CommRecord>& records = mesh_.state().records;
  const auto entry = std::lower_bound(
      records.begin(), records.end(), record_.sequence,
      [](const CommRecord& r, std::int64_t sequence) { return r.sequence < sequence; });
  // Gone if the records were cleared in between.
  if (entry != records.end() && entry->sequence == record_.sequence) *entry = record_;
  if (posted_ >= 0)
    trace::add({.kind = trace::Kind::message,
                .name = record_.op,
                .scope = record_.scope,
                .begin = posted_,
                .end = trace::now(),
                .axis = record_.axis,
                .label = record_.label,
                .sequence = record_.sequence,
                .bytes = record_.bytes});
}

Missing Operation::missing() const {
  Missing missing;
  for (const Transfer& t : receives_)
    if (!t.done) missing.silent.insert(t.peer);
  for (const Transfer& t : sends_)
    if (!t.done) missing.not_taken.insert(t.peer);
  return missing;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/mesh/door.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "tessera/mesh/activity.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/trace.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera {
namespace {

// In order, until one is not ready.
void post_in_order(std::vector<Transfer>& transfers, const Communicator& communicator, int tag) {
  for (Transfer& t : transfers)
    if (!t.post(communicator, tag)) return;
}

}  // namespace

double timeout_from_environment() {
  const std::string text = text_from_environment("TESSERA_TIMEOUT_S");
  if (text.empty()) return kTimeoutSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !std::isfinite(seconds) || seconds < 0)
    refuse_variable("TESSERA_TIMEOUT_S", text, "seconds, 0 for no limit");
  return seconds;
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
      if (!t.done()) state.stranded.push_back(std::move(t));
}

void Operation::post(const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives) {
  const DeviceMesh::State& state = mesh_.state();
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  const auto travels = [&](const auto& m) { return m.peer != state.rank && m.data.numel() > 0; };
  std::copy_if(sends.begin(), sends.end(), std::back_inserter(outgoing), travels);
  std::copy_if(receives.begin(), receives.end(), std::back_inserter(incoming), travels);
  for (const Outgoing& m : outgoing) {
    record_.messages += 1;
    record_.bytes += m.data.bytes();
  }
  if (state.communicator.size() == 0) return post_without_ranks(outgoing, incoming);
  at_step(record_);
  sends_.clear();
  receives_.clear();
  const Event before = record(state.device);
  for (const Incoming& m : incoming) {
    m.data.bump_version();
    for (const Tensor& piece : pieces_of(m.data, state.transport.route))
      receives_.emplace_back(Transfer::Way::in, m.peer, piece, state.transport.route, before);
  }
  for (const Outgoing& m : outgoing)
    for (const Tensor& piece : pieces_of(m.data, state.transport.route))
      sends_.emplace_back(Transfer::Way::out, m.peer, piece, state.transport.route, before);
  for (auto* transfers : {&receives_, &sends_}) post_in_order(*transfers, state.communicator, tag_);
}

// A dry run only counts, on tensors that have no memory.
void Operation::post_without_ranks(const std::vector<Outgoing>& sends,
                                   const std::vector<Incoming>& receives) {
  const auto has_memory = [](const auto& m) { return m.data.device().kind != DeviceKind::meta; };
  if (std::none_of(sends.begin(), sends.end(), has_memory) &&
      std::none_of(receives.begin(), receives.end(), has_memory))
    return;
  close();
  throw InitError({.problem = "a dry run sends no messages",
                   .operation = record_.op,
                   .found = mesh_.describe()});
}

bool Operation::advance(std::vector<Transfer>& transfers) {
  post_in_order(transfers, mesh_.state().communicator, tag_);
  bool all = true;
  for (Transfer& t : transfers) all = t.test() && all;
  return all;
}

bool Operation::test() {
  const bool arrived = advance(receives_);
  return advance(sends_) && arrived;
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
    if (!t.done()) missing.silent.insert(t.peer());
  for (const Transfer& t : sends_)
    if (!t.done()) missing.not_taken.insert(t.peer());
  return missing;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
// Patterns of messages: exchange, shift, mirror.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "tessera/mesh/door.hpp"
#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {

struct Pending::State {
  std::optional<Operation> operation;  // none if it was a local copy on every rank
  bool waited = false;
};

Pending::Pending(std::shared_ptr<State> state) : state_(std::move(state)) {}
Pending::~Pending() = default;
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;

void Pending::progress() {
  if (state_ && state_->operation && !state_->waited) state_->operation->test();
}

void Pending::wait() {
  if (!state_) return;
  if (state_->waited)
    throw CommStateError({.problem = "the exchange was waited for before",
                          .operation = "Pending::wait",
                          .hint = "start a new exchange"});
  if (state_->operation) {
    state_->operation->finish();
    state_->operation->close();
  }
  state_->waited = true;
}

int check_axis(const DeviceMesh& mesh, int axis, const char* operation) {
  if (axis < 0 || axis >= mesh.ndim())
    throw RangeError({.problem = "no such mesh axis",
                      .operation = operation,
                      .found = fmt::format("axis {} of {}", axis, mesh.describe()),
                      .expected = fmt::format("0..{}", mesh.ndim() - 1)});
  return axis;
}

void check_buffer(const DeviceMesh& mesh, const char* operation, const std::string& label,
                  const Tensor& tensor) {
  if (!tensor.defined())
    throw TypeError(
        {.problem = "an undefined tensor cannot travel", .operation = operation, .tensor = label});
  if (!tensor.is_contiguous())
    throw StrideError(
        {.problem = "a buffer that travels must be contiguous",
         .operation = operation,
         .tensor = label,
         .found = format_shape(tensor.shape()) + " with strides " + format_shape(tensor.strides()),
         .hint = "call contiguous() first"});
  if (tensor.device() != mesh.device() && tensor.device() != cpu_device)
    throw DeviceError({.problem = "the tensor is neither on the device of the mesh nor on the host",
                       .operation = operation,
                       .tensor = label,
                       .found = name_of(tensor.device()),
                       .expected = name_of(mesh.device())});
}

namespace {

template <class Message>
void check_messages(const DeviceMesh& mesh, const OpLabel& label,
                    const std::vector<Message>& messages) {
  for (const Message& m : messages) {
    if (m.peer < 0 || m.peer >= mesh.ranks())
      throw RangeError({.problem = "no such peer",
                        .operation = label.op,
                        .tensor = label.label,
                        .found = fmt::format("rank {}", m.peer),
                        .expected = fmt::format("0..{}", mesh.ranks() - 1)});
    check_buffer(mesh, label.op, label.label, m.data);
  }
}

// What is received may overlap neither what is sent nor what else is received.
void check_disjoint(const OpLabel& label, const std::vector<Outgoing>& sends,
                    const std::vector<Incoming>& receives) {
  struct Span {
    const char* begin;
    const char* end;
    bool written;
  };
  std::vector<Span> spans;
  const auto add = [&](const Tensor& t, bool written) {
    const auto* begin = static_cast<const char*>(t.data());
    if (t.bytes() > 0) spans.push_back({begin, begin + t.bytes(), written});
  };
  for (const Outgoing& m : sends) add(m.data, false);
  for (const Incoming& m : receives) add(m.data, true);
  const std::less<const char*> before;
  std::sort(spans.begin(), spans.end(),
            [&](const Span& a, const Span& b) { return before(a.begin, b.begin); });
  const char* end_of_written = nullptr;
  const char* end_of_any = nullptr;
  for (const Span& s : spans) {
    if (before(s.begin, s.written ? end_of_any : end_of_written))
      throw CommStateError({.problem = "a receive buffer overlaps another buffer of the exchange",
                            .operation = label.op,
                            .tensor = label.label,
                            .hint = "receive into a separate tensor"});
    end_of_any = std::max(end_of_any, s.end, before);
    if (s.written) end_of_written = std::max(end_of_written, s.end, before);
  }
}

// The k-th message to oneself is copied into the k-th from oneself.
void copy_to_self(const DeviceMesh& mesh, const OpLabel& label, const std::vector<Outgoing>& sends,
                  const std::vector<Incoming>& receives) {
  std::vector<Tensor> from;
  std::vector<Tensor> into;
  for (const Outgoing& m : sends)
    if (m.peer == mesh.rank()) from.push_back(m.data);
  for (const Incoming& m : receives)
    if (m.peer == mesh.rank()) into.push_back(m.data);
  if (from.size() != into.size())
    throw CommStateError({.problem = "a one-sided exchange with oneself",
                          .operation = label.op,
                          .tensor = label.label,
                          .found = fmt::format("{} sent, {} received", from.size(), into.size())});
  for (std::size_t k = 0; k < from.size(); ++k)
    if (from[k].shape() != into[k].shape() || from[k].dtype() != into[k].dtype())
      throw ShapeError(
          {.problem = "both sides of a message have one shape and dtype",
           .operation = label.op,
           .tensor = label.label,
           .found = fmt::format("{} {}", name_of(from[k].dtype()), format_shape(from[k].shape())),
           .expected =
               fmt::format("{} {}", name_of(into[k].dtype()), format_shape(into[k].shape()))});
  for (std::size_t k = 0; k < from.size(); ++k) copy(from[k], into[k]);
}

Pending start(const DeviceMesh& mesh, const OpLabel& label, const std::vector<Outgoing>& sends,
              const std::vector<Incoming>& receives, bool local_on_all_ranks) {
  check_messages(mesh, label, sends);
  check_messages(mesh, label, receives);
  check_disjoint(label, sends, receives);
  copy_to_self(mesh, label, sends, receives);
  auto state = std::make_shared<Pending::State>();
  if (!local_on_all_ranks) {
    state->operation.emplace(mesh, label, sends, receives);
    state->operation->post(sends, receives);
  }
  return Pending(std::move(state));
}

void check_alike(const char* operation, const std::string& label, const Tensor& send,
                 const Tensor& receive) {
  if (!send.defined() || !receive.defined()) return;  // refused by start()
  if (send.shape() == receive.shape() && send.dtype() == receive.dtype()) return;
  throw ShapeError(
      {.problem = "what is sent and what is received have one shape and dtype",
       .operation = operation,
       .tensor = label,
       .found = fmt::format("{} {}", name_of(receive.dtype()), format_shape(receive.shape())),
       .expected = fmt::format("{} {}", name_of(send.dtype()), format_shape(send.shape()))});
}

}  // namespace

Pending exchange(const DeviceMesh& mesh, const OpLabel& label, std::vector<Outgoing> sends,
                 std::vector<Incoming> receives) {
  return start(mesh, label, sends, receives, mesh.ranks() == 1);
}

Pending shift(const DeviceMesh& mesh, int axis, int offset, const Tensor& send,
              const Tensor& receive, const std::string& label, CallSite where) {
  check_axis(mesh, axis, "shift");
  check_alike("shift", label, send, receive);
  if (mutation() == Mutation::reverse_ring) offset = -offset;
  std::vector<int> to = mesh.coordinate();
  std::vector<int> from = to;
  to[static_cast<std::size_t>(axis)] += offset;
  from[static_cast<std::size_t>(axis)] -= offset;
  return start(mesh, {"shift", mesh.axis_name(axis), label, where}, {{mesh.rank_of(to), send}},
               {{mesh.rank_of(from), receive}}, offset % mesh.size(axis) == 0);
}

Pending mirror(const DeviceMesh& mesh, const Tensor& send, const Tensor& receive,
               const std::string& label, CallSite where) {
  if (mesh.ndim() != 3 || mesh.size(kCp0) != mesh.size(kCp1))
    throw MeshError({.problem = "the mirror rank (j, i) exists on a square grid only",
                     .operation = "mirror",
                     .tensor = label,
                     .found = mesh.describe(),
                     .expected = "axes dp, cp0, cp1 with cp0 == cp1",
                     .hint = "use a relayout on other grids"});
  check_alike("mirror", label, send, receive);
  const std::vector<int>& own = mesh.coordinate();
  const int peer = mesh.rank_of({own[kDp], own[kCp1], own[kCp0]});
  return start(mesh, {"transpose", "cp0+cp1", label, where}, {{peer, send}}, {{peer, receive}},
               mesh.size(kCp0) == 1);
}

}  // namespace tessera

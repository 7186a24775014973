// SPDX-License-Identifier: MIT
// The move of a relayout. On the wire, a message is the regions of one peer, each packed as
// [batch, rows, cols], in the order of the plan.
#include "tessera/mesh/relayout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

using Parts = std::vector<RelayoutPlan::Part>;
constexpr const char* kOperation = "relayout";

void check_source(const DeviceMesh& mesh, const RelayoutPlan& plan,
                  const std::vector<Tensor>& source, const std::string& label) {
  const auto refuse = [&](const char* problem, std::string found, std::string expected) {
    throw ShapeError({.problem = problem,
                      .operation = kOperation,
                      .tensor = label,
                      .found = std::move(found),
                      .expected = std::move(expected)});
  };
  if (plan.rank != mesh.rank())
    throw MeshError({.problem = "the plan is that of another rank",
                     .operation = kOperation,
                     .tensor = label,
                     .found = fmt::format("rank {}", plan.rank),
                     .expected = fmt::format("rank {}", mesh.rank())});
  if (source.size() != plan.source.size() || source.empty())
    refuse("one tensor per source piece, at least one", fmt::format("{} tensor(s)", source.size()),
           fmt::format("{} piece(s)", plan.source.size()));
  for (std::size_t k = 0; k < source.size(); ++k) {
    if (!source[k].defined() || source[k].dtype() != source.front().dtype())
      throw TypeError({.problem = "all pieces are defined and of one dtype",
                       .operation = kOperation,
                       .tensor = label});
    const Box& box = plan.source[k];
    const Shape expected{source.front().ndim() == 3 ? source.front().size(0) : -1, box.rows.size(),
                         box.cols.size()};
    if (source[k].shape() != expected)
      refuse("a piece is [batch, rows, cols] of its box", format_shape(source[k].shape()),
             format_shape(expected));
  }
}

// The part of a piece's tensor that holds `region`.
Tensor view_of(const Tensor& piece, const Box& box, const Box& region) {
  return piece.narrow(1, region.rows.begin - box.rows.begin, region.rows.size())
      .narrow(2, region.cols.begin - box.cols.begin, region.cols.size());
}

std::vector<Tensor> views_of(const std::vector<Tensor>& pieces, const std::vector<Box>& boxes,
                             const Parts& parts) {
  std::vector<Tensor> views;
  for (const RelayoutPlan::Part& part : parts) {
    const auto k = static_cast<std::size_t>(part.piece);
    views.push_back(view_of(pieces[k], boxes[k], part.region));
  }
  return views;
}

// Copies between the views and consecutive stretches of a flat buffer.
void pack(const std::vector<Tensor>& views, const Tensor& buffer, bool into_buffer) {
  std::int64_t at = 0;
  for (const Tensor& view : views) {
    const Tensor stretch = buffer.narrow(0, at, view.numel()).view(view.shape());
    into_buffer ? copy(view, stretch) : copy(stretch, view);
    at += view.numel();
  }
}

// The message of one peer: the memory itself if it is one block, else a buffer.
struct Message {
  int peer = 0;
  std::vector<Tensor> views = {};
  Tensor data = {};
  bool packed = false;
};

std::vector<Message> messages_of(const Parts& parts, const std::vector<Tensor>& views, int self) {
  std::vector<Message> messages;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    if (parts[k].peer == self) continue;
    if (messages.empty() || messages.back().peer != parts[k].peer)
      messages.push_back({.peer = parts[k].peer});
    messages.back().views.push_back(views[k]);
  }
  const PurposeScope purpose(Purpose::communication);
  for (Message& m : messages) {
    const Tensor& first = m.views.front();
    m.packed = m.views.size() > 1 || !first.is_contiguous();
    std::int64_t elements = 0;
    for (const Tensor& view : m.views) elements += view.numel();
    m.data = m.packed ? Tensor::empty({elements}, first.dtype(), first.device()) : first;
  }
  return messages;
}

bool contains(const Box& outer, const Box& inner) {
  return intersect(outer, inner) == inner;
}

// The own source piece whose storage a target piece shares, or -1.
int shared_piece(const RelayoutPlan& plan, const Box& target, Sharing sharing) {
  for (std::size_t k = 0; k < plan.source.size(); ++k)
    if (target == plan.source[k] || (sharing == Sharing::parts && contains(plan.source[k], target)))
      return static_cast<int>(k);
  return -1;
}

std::vector<Tensor> make_targets(const RelayoutPlan& plan, const std::vector<Tensor>& source,
                                 Sharing sharing) {
  std::vector<Tensor> target;
  const Tensor& like = source.front();
  for (const Box& box : plan.target) {
    const int shared = shared_piece(plan, box, sharing);
    const auto index = static_cast<std::size_t>(shared);
    if (shared < 0)
      target.push_back(Tensor::empty({like.size(0), box.rows.size(), box.cols.size()}, like.dtype(),
                                     like.device()));
    else if (box == plan.source[index])
      target.push_back(source[index].contiguous());
    else
      target.push_back(view_of(source[index], plan.source[index], box));
  }
  return target;
}

void copy_own(const RelayoutPlan& plan, const std::vector<Tensor>& from,
              const std::vector<Tensor>& into, Sharing sharing) {
  std::size_t s = 0;
  for (std::size_t t = 0; t < plan.receives.size(); ++t) {
    if (plan.receives[t].peer != plan.rank) continue;
    while (plan.sends[s].peer != plan.rank) ++s;
    const Box& target = plan.target[static_cast<std::size_t>(plan.receives[t].piece)];
    if (shared_piece(plan, target, sharing) < 0) copy(from[s], into[t]);
    ++s;
  }
}

// Parts of other ranks on their way.
struct Transfer {
  Pending pending;
  std::vector<Message> coming;

  void finish() {
    pending.wait();
    for (const Message& m : coming)
      if (m.packed) pack(m.views, m.data, false);
    coming.clear();
  }
};

Transfer start_transfer(const DeviceMesh& mesh, const RelayoutPlan& plan,
                        const std::vector<Tensor>& from, const std::vector<Tensor>& into,
                        const OpLabel& label) {
  std::vector<Message> coming = messages_of(plan.receives, into, plan.rank);
  std::vector<Outgoing> sends;
  std::vector<Incoming> receives;
  for (const Message& m : messages_of(plan.sends, from, plan.rank)) {
    if (m.packed) pack(m.views, m.data, true);
    sends.push_back({m.peer, m.data});
  }
  for (const Message& m : coming) receives.push_back({m.peer, m.data});
  Pending pending = exchange(mesh, label, std::move(sends), std::move(receives));
  return {std::move(pending), std::move(coming)};
}

// A tensor for each part that comes; the own ones are where they are.
std::vector<Tensor> part_tensors(const RelayoutPlan& plan, const std::vector<Tensor>& from,
                                 const Tensor& like) {
  const PurposeScope purpose(Purpose::communication);
  std::vector<Tensor> tensors;
  std::size_t s = 0;
  for (const RelayoutPlan::Part& part : plan.receives) {
    if (part.peer != plan.rank) {
      tensors.push_back(
          Tensor::empty({like.size(0), part.region.rows.size(), part.region.cols.size()},
                        like.dtype(), like.device()));
      continue;
    }
    while (plan.sends[s].peer != plan.rank) ++s;
    tensors.push_back(from[s++]);
  }
  return tensors;
}

}  // namespace

struct PendingRelayout::State {
  Transfer transfer;
  std::vector<Tensor> target;
};

PendingRelayout::PendingRelayout(std::unique_ptr<State> state) : state_(std::move(state)) {}
PendingRelayout::PendingRelayout(PendingRelayout&&) noexcept = default;
PendingRelayout& PendingRelayout::operator=(PendingRelayout&&) noexcept = default;
PendingRelayout::~PendingRelayout() = default;

void PendingRelayout::progress() {
  state_->transfer.pending.progress();
}

std::vector<Tensor> PendingRelayout::wait() {
  state_->transfer.finish();
  return std::move(state_->target);
}

PendingRelayout start_relayout(const DeviceMesh& mesh, const RelayoutPlan& plan,
                               const std::vector<Tensor>& source, const std::string& axis,
                               const std::string& label, Sharing sharing, CallSite where) {
  check_source(mesh, plan, source, label);
  const std::vector<Tensor> target = make_targets(plan, source, sharing);
  const std::vector<Tensor> from = views_of(source, plan.source, plan.sends);
  const std::vector<Tensor> into = views_of(target, plan.target, plan.receives);
  Transfer transfer = start_transfer(mesh, plan, from, into, {kOperation, axis, label, where});
  copy_own(plan, from, into, sharing);
  return PendingRelayout(std::make_unique<PendingRelayout::State>(std::move(transfer), target));
}

std::vector<Tensor> relayout(const DeviceMesh& mesh, const RelayoutPlan& plan,
                             const std::vector<Tensor>& source, const std::string& axis,
                             const std::string& label, CallSite where) {
  return start_relayout(mesh, plan, source, axis, label, Sharing::wholes, where).wait();
}

std::vector<Tensor> relayout_add(const DeviceMesh& mesh, const RelayoutPlan& plan,
                                 const std::vector<Tensor>& target, const std::string& axis,
                                 const std::string& label, CallSite where) {
  const RelayoutPlan back = reversed(plan);
  check_source(mesh, back, target, label);
  const Tensor& like = target.front();
  const std::vector<Tensor> from = views_of(target, back.source, back.sends);
  const std::vector<Tensor> parts = part_tensors(back, from, like);
  Transfer transfer = start_transfer(mesh, back, from, parts, {kOperation, axis, label, where});
  std::vector<Tensor> sums;
  for (const Box& box : back.target)
    sums.push_back(Tensor::zeros({like.size(0), box.rows.size(), box.cols.size()}, like.dtype(),
                                 like.device()));
  transfer.finish();
  const std::vector<Tensor> into = views_of(sums, back.target, back.receives);
  for (std::size_t k = 0; k < parts.size(); ++k) add(1, into[k], 1, parts[k], into[k]);
  return sums;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/layers/schedule/key_panels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

constexpr std::array kGrid{kCp0, kCp1};
constexpr const char* kAxis = "cp0+cp1";

// Tensors one behind the other along dim 1.
Tensor joined(std::vector<Tensor> pieces) {
  if (pieces.size() == 1) return pieces.front();
  Shape shape = pieces.front().shape();
  shape[1] = 0;
  for (const Tensor& piece : pieces) shape[1] += piece.size(1);
  const Tensor whole = Tensor::empty(shape, pieces.front().dtype(), pieces.front().device());
  std::int64_t at = 0;
  for (const Tensor& piece : pieces) {
    copy(piece, whole.narrow(1, at, piece.size(1)));
    at += piece.size(1);
  }
  return whole;
}

ContractMessage message_of(Pass pass, const KeyPlan& plan, const Formula& token_bytes,
                           std::string label, const char* what, bool back) {
  std::int64_t messages = 0, tokens = 0;
  for (int round = 0; round < plan.rounds(); ++round) {
    const RelayoutPlan there = plan.relayout(round, 1);
    const RelayoutPlan used = back ? reversed(there) : there;
    messages += sent_messages(used);
    tokens += sent_elements(used);
  }
  return {pass,
          "relayout",
          kAxis,
          std::move(label),
          number("key rounds", plan.rounds()),
          number(fmt::format("messages({})", what), messages),
          number(what, tokens) * token_bytes};
}

}  // namespace

KeyPlan::KeyPlan(const DeviceMesh& mesh, std::int64_t tokens)
    : mesh_(mesh), tokens_(tokens), rounds_(1) {
  const int rows = mesh.size(kCp0), cols = mesh.size(kCp1);
  if (cols >= rows) return;
  for (int j = 0; j < cols; ++j)
    while (!pieces(0, j, rounds_).empty()) ++rounds_;
}

std::vector<KeyPlan::Piece> KeyPlan::pieces(int i, int j, int round) const {
  const int rows = mesh_.size(kCp0), cols = mesh_.size(kCp1);
  std::vector<Piece> all;
  for (int row = 0; row < rows; ++row) {
    const Interval part = intersect(shard_of(tokens_, rows, row), shard_of(tokens_, cols, j));
    if (!part.empty()) all.push_back({row, part});
  }
  if (cols >= rows) return all;
  const auto count = static_cast<int>(all.size());
  if (round >= count) return {};
  return {all[static_cast<std::size_t>((round + i / cols) % count)]};
}

Interval KeyPlan::keys(int round) const {
  const std::vector<Piece> own = pieces(mesh_.coordinate(kCp0), mesh_.coordinate(kCp1), round);
  if (own.empty()) return {};
  const Interval block = shard_of(tokens_, mesh_.size(kCp1), mesh_.coordinate(kCp1));
  return {own.front().keys.begin - block.begin, own.back().keys.end - block.begin};
}

RelayoutPlan KeyPlan::relayout(int round, std::int64_t width) const {
  const int rows = mesh_.size(kCp0), cols = mesh_.size(kCp1);
  const Ownership source = tiles(mesh_, tokens_, cols * width, kCp0, kCp1);
  Ownership target{std::vector<std::vector<Box>>(static_cast<std::size_t>(mesh_.ranks()))};
  for (const int rank : mesh_.group(kGrid)) {
    const std::vector<int> at = mesh_.coordinate_of(rank);
    const int i = at[kCp0], j = at[kCp1];
    std::vector<Box>& wanted = target.pieces[static_cast<std::size_t>(rank)];
    for (const Piece& piece : pieces(i, j, round)) {
      const int replica = piece.row == i ? j : (i + rows * j) % cols;
      wanted.push_back({piece.keys, shard_of(cols * width, cols, replica)});
    }
    if (wanted.empty()) wanted.emplace_back();
  }
  return plan_relayout(source, target, mesh_.rank());
}

KeyStream::KeyStream(const DeviceMesh& mesh, const KeyPlan& plan, Tensor own, std::string label)
    : mesh_(mesh), plan_(plan), own_(std::move(own)), label_(std::move(label)) {
  coming_.emplace(start(0));
}

PendingRelayout KeyStream::start(int round) const {
  const PurposeScope purpose(Purpose::communication);
  return start_relayout(mesh_, plan_.relayout(round, own_.size(2)), {own_}, kAxis, label_);
}

bool KeyStream::next() {
  if (!coming_) return false;
  const PurposeScope purpose(Purpose::communication);
  block_ = joined(coming_->wait());
  coming_.reset();
  if (++round_ + 1 < plan_.rounds()) coming_.emplace(start(round_ + 1));
  return true;
}

void KeyStream::progress() {
  if (coming_) coming_->progress();
}

Tensor return_keys(const DeviceMesh& mesh, const KeyPlan& plan, int round, const Tensor& gradients,
                   const std::string& label) {
  const PurposeScope purpose(Purpose::communication);
  const RelayoutPlan there = plan.relayout(round, gradients.size(2));
  std::vector<Tensor> pieces;
  std::int64_t at = 0;
  for (const Box& box : there.target) {
    pieces.push_back(gradients.narrow(1, at, box.rows.size()).narrow(2, 0, box.cols.size()));
    at += box.rows.size();
  }
  return relayout_add(mesh, there, pieces, kAxis, label).front();
}

ContractMessage key_message(Pass pass, const KeyPlan& plan, const Formula& token_bytes,
                            std::string label) {
  return message_of(pass, plan, token_bytes, std::move(label), "keys sent", false);
}

ContractMessage return_message(Pass pass, const KeyPlan& plan, const Formula& token_bytes,
                               std::string label) {
  return message_of(pass, plan, token_bytes, std::move(label), "keys returned", true);
}

}  // namespace tessera

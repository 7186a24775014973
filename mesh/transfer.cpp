// SPDX-License-Identifier: MIT
#include "tessera/mesh/transfer.hpp"

#include <algorithm>
#include <utility>

#include "tessera/mesh/testing.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

// What a device's memory needs to travel on the route.
Route route_of(const Tensor& piece, Route route) {
  return is_gpu(piece.device()) ? route : Route::host;
}

}  // namespace

std::vector<Tensor> pieces_of(const Tensor& message, Route route) {
  const Tensor flat = message.view({message.numel()});
  if (route != Route::staged) return {flat};
  const auto most = kStagedPieceBytes / static_cast<std::int64_t>(size_of(flat.dtype()));
  std::vector<Tensor> pieces;
  for (std::int64_t begin = 0; begin < flat.numel(); begin += most)
    pieces.push_back(flat.narrow(0, begin, std::min(most, flat.numel() - begin)));
  return pieces;
}

Transfer::Transfer(Way way, int peer, Tensor piece, Route route, const Event& before)
    : way_(way), peer_(peer), piece_(std::move(piece)), wire_(piece_), before_(before) {
  const bool out = way_ == Way::out;
  switch (route_of(piece_, route)) {
    case Route::host:
      break;
    case Route::direct:
      if (!may_travel(piece_)) {
        wire_ = travelling(piece_.shape(), piece_.dtype(), piece_.device());
        if (out) copy(piece_, wire_);
        ready_ = record(piece_.device());
      } else {
        ready_ = before_;
      }
      break;
    case Route::staged:
      wire_ = pinned(piece_.shape(), piece_.dtype(), piece_.device());
      if (out) ready_ = copy_async(piece_, wire_, before_);
      break;
  }
  const Mutation too_early = out ? Mutation::send_too_early : Mutation::receive_too_early;
  if (mutation() == too_early) ready_ = before_ = Event();
}

bool Transfer::post(const Communicator& communicator, int tag) {
  if (posted_) return true;
  if (!ready_.done()) return false;
  request_ = way_ == Way::out ? communicator.send(peer_, wire_.data(), wire_.bytes(), tag)
                              : communicator.receive(peer_, wire_.data(), wire_.bytes(), tag);
  posted_ = true;
  return true;
}

bool Transfer::test() {
  if (done_ || !posted_) return done_;
  done_ = request_.test();
  if (done_ && way_ == Way::in && !wire_.shares_storage(piece_)) land();
  return done_;
}

void Transfer::land() {
  if (wire_.device() == piece_.device()) return copy(wire_, piece_);
  const Event landed = copy_async(wire_, piece_, before_);
  if (mutation() != Mutation::read_too_early) make_wait(piece_.device(), landed);
}

}  // namespace tessera

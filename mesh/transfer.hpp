// SPDX-License-Identifier: MIT
// A message between the memory of a tensor and a peer. The host waits for no device: MPI gets the
// memory once an event says so, which is asked when the transfer is polled. For mesh/ only.
#pragma once

#include <vector>

#include "tessera/mesh/communicator.hpp"
#include "tessera/mesh/transport.hpp"
#include "tessera/runtime/stream.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// Of a flat tensor: what is sent and received in one go on this route, the same on both sides.
std::vector<Tensor> pieces_of(const Tensor& message, Route route);

class Transfer {
 public:
  enum class Way { out, in };
  // `before` is the work on the device that must be done before its memory may be read (out) or
  // overwritten (in).
  Transfer(Way way, int peer, Tensor piece, Route route, const Event& before);

  // Hands the memory to MPI if it is ready; true if that has been done. Messages of two ranks
  // match in the order in which they are posted.
  bool post(const Communicator& communicator, int tag);
  // True once work that is started on the device from now on may use the memory.
  bool test();

  int peer() const { return peer_; }
  bool done() const { return done_; }

 private:
  void land();

  Way way_;
  int peer_;
  Tensor piece_;
  Tensor wire_;  // what MPI reads or writes: the piece itself, or its copy
  Event before_;
  Event ready_;  // when MPI may have the wire
  bool posted_ = false;
  bool done_ = false;
  Communicator::Request request_;
};

}  // namespace tessera

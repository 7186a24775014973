// SPDX-License-Identifier: MIT
// Keys for tiles of logits. Rank (i, j) of the CP grid forms the logits of its queries I_i with the
// keys J_j, but keys are single tensors (S0,S1,R): row r of the grid holds those of I_r, on every
// column. Seen as a matrix with one row per token and one column per replica, each rank owns a tile
// of it and J_j is fetched by relayout from different columns, so that the replicas share the work:
// what a rank has itself stays, the rest comes from column (i + R0 j) mod R1. On a P x P grid that
// is one exchange with the mirror rank (j, i), on 1 x P nothing moves.
//
// With R1 < R0 a block J_j is larger than a single tensor's share. It comes in rounds, one row
// block at a time, each on its way while the one before is used, beginning with another one on each
// rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/autodiff/contract.hpp"
#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/relayout.hpp"
#include "tessera/runtime/tensor.hpp"

namespace tessera {

// Which keys come when: one rank's part. Pure arithmetic. `tokens` is divisible by both axes.
class KeyPlan {
 public:
  KeyPlan(const DeviceMesh& mesh, std::int64_t tokens);

  int rounds() const { return rounds_; }  // equal on all ranks
  // The keys of this rank in a round, counted from the begin of J_j; in late rounds perhaps none.
  Interval keys(int round) const;
  // Moves [batch, I_i, width] to the pieces of the round, which lie one behind the other.
  RelayoutPlan relayout(int round, std::int64_t width) const;

 private:
  struct Piece {
    int row;  // of the grid, its owner
    Interval keys;
  };
  std::vector<Piece> pieces(int i, int j, int round) const;

  DeviceMesh mesh_;
  std::int64_t tokens_;
  int rounds_;
};

// The keys of round after round. Collective over the mesh.
class KeyStream {
 public:
  // own: [batch, I_i, width], whatever belongs to a key. Starts the first round.
  KeyStream(const DeviceMesh& mesh, const KeyPlan& plan, Tensor own, std::string label);
  // Waits for a round and starts the one after; false when all have been used.
  bool next();
  int round() const { return round_; }
  const Tensor& block() const { return block_; }  // [batch, keys(round), width]
  void progress();                                // lets MPI move the next ones

 private:
  PendingRelayout start(int round) const;
  DeviceMesh mesh_;
  KeyPlan plan_;
  Tensor own_;
  std::string label_;
  int round_ = -1;
  Tensor block_;
  std::optional<PendingRelayout> coming_;
};

// The adjoint of one round: gradients [batch, keys(round), width] go to the owners of the keys.
// Returns [batch, I_i, width]: the sum over cp1 and all rounds is the sum of all ranks' gradients.
Tensor return_keys(const DeviceMesh& mesh, const KeyPlan& plan, int round, const Tensor& gradients,
                   const std::string& label);

// Lines of a whole stream and of all returns, for a contract. `token_bytes`: of one key, batch and
// width together.
ContractMessage key_message(Pass pass, const KeyPlan& plan, const Formula& token_bytes,
                            std::string label);
ContractMessage return_message(Pass pass, const KeyPlan& plan, const Formula& token_bytes,
                               std::string label);

}  // namespace tessera

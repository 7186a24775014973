// SPDX-License-Identifier: MIT
// A grid of ranks with named axes, normally (dp, cp0, cp1), of any shape.
// rank = (d*cp0 + i)*cp1 + j: row-major, last axis fastest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/comm_ledger.hpp"
#include "tessera/mesh/communicator.hpp"
#include "tessera/runtime/device.hpp"

namespace tessera {

struct MeshShape {
  int dp = 1;
  int cp0 = 1;
  int cp1 = 1;
  int ranks() const { return dp * cp0 * cp1; }
  bool operator==(const MeshShape&) const = default;
};
std::string format(const MeshShape& shape);         // "2x3", "2x2x3" with dp > 1
MeshShape parse_mesh_shape(std::string_view text);  // "CP0xCP1" or "DPxCP0xCP1"; UsageError
MeshShape squarest(int ranks);                      // dp = 1, cp0 <= cp1, as square as possible

inline constexpr int kDp = 0;
inline constexpr int kCp0 = 1;
inline constexpr int kCp1 = 2;

struct Transport;

// A value; copies are the same mesh. All axes share one communicator and one sequence number, so
// no communicator is made per axis: a group is a list of ranks.
class DeviceMesh {
 public:
  DeviceMesh() = default;                                // no mesh
  static DeviceMesh serial(Device device = cpu_device);  // one rank, no MPI
  // Collective. InitError on every rank unless shape.ranks() == communicator.size() and all ranks
  // ask for the same shape. On a GPU the ranks then choose how messages travel
  // (mesh/transport.hpp): UsageError unless TESSERA_CUDA_AWARE is the same on all ranks.
  static DeviceMesh create(const Communicator& communicator, MeshShape shape,
                           Device device = cpu_device);
  // Pretends to be `rank` of a mesh, on the meta device: plans and ledgers work, and tensors
  // without memory travel; messages of real tensors throw InitError.
  static DeviceMesh dry_run(MeshShape shape, int rank);

  // The same ranks seen as (dp, cp), cp = cp0*cp1 flattened. Same communicator and sequence.
  DeviceMesh flatten_cp() const;
  // The same ranks seen with all three axes.
  DeviceMesh unflatten_cp() const;

  bool defined() const { return state_ != nullptr; }
  bool operator==(const DeviceMesh& other) const;  // same mesh and same view of it
  int ndim() const;
  const std::vector<int>& shape() const;       // per axis
  const std::vector<int>& coordinate() const;  // own, per axis
  std::vector<int> coordinate_of(int rank) const;
  int rank_of(const std::vector<int>& coordinate) const;  // modulo each axis
  int size(int axis) const { return shape()[static_cast<std::size_t>(axis)]; }
  int coordinate(int axis) const { return coordinate()[static_cast<std::size_t>(axis)]; }
  int rank() const;
  int ranks() const;
  Device device() const;
  const Transport& transport() const;  // mesh/transport.hpp
  const std::string& axis_name(int axis) const;
  std::string axes_name(std::span<const int> axes) const;  // "dp+cp0"
  std::string describe() const;                            // "mesh dp=1 cp0=2 cp1=3"

  // Ranks that share all coordinates but those of `axes`, ascending in those coordinates.
  std::vector<int> group(std::span<const int> axes) const;

  // The communication ledger of this rank.
  const std::vector<CommRecord>& records() const;
  void clear_records() const;

  class State;
  State& state() const;  // for mesh/ only (mesh/door.hpp)

 private:
  std::shared_ptr<State> state_;
  bool flat_ = false;
};

}  // namespace tessera

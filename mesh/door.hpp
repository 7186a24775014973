// SPDX-License-Identifier: MIT
// The one door. Every operation on a mesh is an Operation: it takes a number that is equal on all
// ranks, enters the ledger, posts rounds of messages under a tag of its own, and waits for them
// with a deadline. For mesh/ only.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/lockstep.hpp"
#include "tessera/mesh/mailbox.hpp"
#include "tessera/mesh/transfer.hpp"
#include "tessera/mesh/watch.hpp"

namespace tessera {

class DeviceMesh::State {
 public:
  struct View {
    std::vector<int> shape;
    std::vector<int> coordinate;
    std::vector<std::string> names;
  };

  State(Communicator comm, int own_rank, MeshShape mesh_shape, Device mesh_device,
        double time_limit);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  void set_shape(MeshShape mesh_shape);
  double seconds() const;  // since the mesh was made

  Communicator communicator;  // empty: a dry run
  int rank;
  MeshShape shape;
  Device device;
  Transport transport = {};
  View full;
  View flat;

  std::int64_t sequence = 0;  // of the next operation
  std::vector<CommRecord> records;
  double timeout_s;                       // 0: none
  bool lockstep = false;                  // TESSERA_LOCKSTEP
  bool check_replicas = false;            // TESSERA_CHECK_REPLICAS
  std::unique_ptr<Mailbox> mailbox = {};  // none on a single rank
  std::string unfinished = {};            // names the operation that was not waited for or failed
  std::vector<Transfer> stranded;

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// TESSERA_TIMEOUT_S; UsageError unless it is a number >= 0.
inline constexpr double kTimeoutSeconds = 300;
double timeout_from_environment();

class Operation {
 public:
  // A collective or an exchange. Takes the next sequence number; in lockstep mode all ranks agree
  // on it first. CommStateError after an unfinished operation.
  Operation(const DeviceMesh& mesh, OpLabel label, const Content& content);
  Operation(const DeviceMesh& mesh, OpLabel label, const std::vector<Outgoing>& sends,
            const std::vector<Incoming>& receives);
  ~Operation();  // not closed: the mesh keeps the buffers and refuses further operations
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Posts one round, receives first. Empty tensors and messages to oneself are not messages;
  // the caller has copied the latter.
  void post(const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives);
  bool test();    // lets MPI move data; true once work that starts now may use what arrived
  void finish();  // waits for the round
  void round(const std::vector<Outgoing>& sends, const std::vector<Incoming>& receives) {
    post(sends, receives);
    finish();
  }
  void close();  // ends the ledger's record

  const DeviceMesh& mesh() const { return mesh_; }

 private:
  void begin(OpLabel label, DType dtype);
  template <class Agree>
  void in_lockstep(const Agree& agree);
  void post_without_ranks(const std::vector<Outgoing>& sends,
                          const std::vector<Incoming>& receives);
  bool advance(std::vector<Transfer>& transfers);
  Missing missing() const;

  DeviceMesh mesh_;
  CommRecord record_;   // entered into the ledger at once, and again when closed
  double posted_ = -1;  // on the timeline; < 0: it is off
  int tag_ = 0;
  std::vector<Transfer> sends_;
  std::vector<Transfer> receives_;
  bool closed_ = false;
};

// Steps of collectives inside an operation. A group is a list of mesh ranks; `me` is the own place
// in it. Groups of one do nothing.
struct Group {
  std::vector<int> ranks;
  int me = 0;
  int size() const { return static_cast<int>(ranks.size()); }
  int at(int place) const {  // modulo the size
    const int n = size();
    return ranks[static_cast<std::size_t>((place % n + n) % n)];
  }
};
Group group_of(const DeviceMesh& mesh, std::span<const int> axes);
Content content_of(const Tensor& tensor, const Group& group);

void broadcast_rounds(Operation& operation, const Group& group, int root, const Tensor& tensor);
// `full` is read at the root only.
void scatter_rounds(Operation& operation, const Group& group, int root, const Tensor& full, int dim,
                    const Tensor& part);
// all_reduce under another name in the ledger.
void all_reduce_as(const char* name, const DeviceMesh& mesh, std::span<const int> axes, ReduceOp op,
                   const Tensor& tensor, const std::string& label, CallSite where);

// ShapeError unless the root holds what was announced. On the root only: inside collective_try().
void check_root_tensor(const Tensor& full, const Shape& shape, DType dtype, const char* operation,
                       const std::string& label);
std::vector<int> all_axes(const DeviceMesh& mesh);
// Views along dim; UnevenError if they would not be equal, RangeError for a wrong dim.
std::vector<Tensor> equal_parts(const Tensor& tensor, int dim, int parts, const char* operation,
                                const std::string& label);
// Checks that the tensor can travel: defined (TypeError), contiguous (StrideError), on the device
// of the mesh or on the host (DeviceError).
void check_buffer(const DeviceMesh& mesh, const char* operation, const std::string& label,
                  const Tensor& tensor);
// Mesh axis in range (RangeError).
int check_axis(const DeviceMesh& mesh, int axis, const char* operation);

}  // namespace tessera

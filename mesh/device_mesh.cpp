// SPDX-License-Identifier: MIT
#include "tessera/mesh/device_mesh.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include "tessera/mesh/collectives.hpp"
#include "tessera/mesh/door.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/log.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera {
namespace {

std::vector<int> coordinate_in(const std::vector<int>& shape, int rank) {
  std::vector<int> coordinate(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    coordinate[axis] = rank % shape[axis];
    rank /= shape[axis];
  }
  return coordinate;
}

int rank_in(const std::vector<int>& shape, const std::vector<int>& coordinate) {
  int rank = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    rank = rank * shape[axis] + (coordinate[axis] % shape[axis] + shape[axis]) % shape[axis];
  return rank;
}

// The product, without overflow; -1 unless all sizes are positive.
std::int64_t ranks_of(const MeshShape& s) {
  constexpr int kMost = 1 << 20;
  if (std::min({s.dp, s.cp0, s.cp1}) < 1 || std::max({s.dp, s.cp0, s.cp1}) > kMost) return -1;
  return std::int64_t{s.dp} * s.cp0 * s.cp1;
}

void check_shape(const MeshShape& shape, int ranks, const char* operation) {
  if (ranks_of(shape) == ranks) return;
  const MeshShape fit = squarest(ranks);
  throw InitError({.problem = "the mesh does not fit the ranks",
                   .operation = operation,
                   .found = fmt::format("mesh {} for {} rank(s)", format(shape), ranks),
                   .expected = "dp*cp0*cp1 equal to the number of ranks",
                   .hint = fmt::format("for example {}", format(fit))});
}

// All ranks must ask for one shape; each sees the whole group, whatever it asked for.
void agree_on_shape(const DeviceMesh& line, const MeshShape& shape) {
  const Tensor most =
      Tensor::from_values({6},
                          {double(shape.dp), double(shape.cp0), double(shape.cp1),
                           -double(shape.dp), -double(shape.cp0), -double(shape.cp1)},
                          DType::i64);
  all_reduce(line, kCp1, ReduceOp::max, most, "mesh shape");
  const auto* v = most.host_data<std::int64_t>();
  if (v[0] == -v[3] && v[1] == -v[4] && v[2] == -v[5]) return;
  throw InitError({.problem = "the ranks ask for different meshes",
                   .operation = "DeviceMesh::create",
                   .found = fmt::format("dp {}..{}, cp0 {}..{}, cp1 {}..{}", -v[3], v[0], -v[4],
                                        v[1], -v[5], v[2]),
                   .expected = "one shape on all ranks"});
}

// The MPI knows nothing of the imitation, whose messages it can carry nevertheless: for tests that
// ask for it.
bool mpi_is_cuda_aware(Device device) {
  return device.kind == DeviceKind::cuda && mpi_info().cuda_aware == "yes";
}

// What the environment says to this rank.
struct Settings {
  double timeout_s = kTimeoutSeconds;
  bool lockstep = false;
  bool check_replicas = false;
  bool check_finite = false;
  CudaAware cuda_aware = CudaAware::automatic;
  std::exception_ptr refused = {};  // a value that a variable cannot have
};

// Of all variables, also those that others use: later one rank alone would find a wrong one.
Settings settings_from_environment() {
  Settings s;
  try {
    s.timeout_s = timeout_from_environment();
    s.lockstep = flag_from_environment("TESSERA_LOCKSTEP");
    s.check_replicas = flag_from_environment("TESSERA_CHECK_REPLICAS");
    s.check_finite = flag_from_environment("TESSERA_CHECK_FINITE");
    s.cuda_aware = cuda_aware_from_environment();
    thread_count();
    instruction_set();
  } catch (const UsageError&) {
    s.refused = std::current_exception();
  }
  return s;
}

// What any rank asks for, all do: the variables may not have reached every node. But for the watch
// for finite values, which is the process's and not the mesh's.
void agree_on_watchers(const DeviceMesh& line, Settings& s) {
  const double finite = s.check_finite ? 1 : 0;
  const Tensor most = Tensor::from_values(
      {4}, {double(s.lockstep), double(s.check_replicas), finite, -finite}, DType::i64);
  all_reduce(line, kCp1, ReduceOp::max, most, "watchers");
  const auto* v = most.host_data<std::int64_t>();
  if (v[2] != -v[3])
    throw UsageError({.problem = "the ranks differ in whether values must be finite",
                      .operation = "TESSERA_CHECK_FINITE",
                      .found = "0 and 1",
                      .expected = "one value on all ranks",
                      .hint = "have the launcher pass the variable on: mpirun -x, srun --export"});
  s.lockstep = v[0] != 0;
  s.check_replicas = v[1] != 0;
}

}  // namespace

std::string format(const MeshShape& s) {
  return s.dp > 1 ? fmt::format("{}x{}x{}", s.dp, s.cp0, s.cp1)
                  : fmt::format("{}x{}", s.cp0, s.cp1);
}

MeshShape parse_mesh_shape(std::string_view text) {
  std::vector<int> sizes;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (bool more = true; more;) {
    int size = 0;
    const auto [rest, error] = std::from_chars(at, end, size);
    if (error != std::errc{} || size < 1) break;
    sizes.push_back(size);
    more = rest != end && *rest == 'x';
    at = more ? rest + 1 : rest;
  }
  MeshShape shape;
  if (sizes.size() == 2) shape = {1, sizes[0], sizes[1]};
  if (sizes.size() == 3) shape = {sizes[0], sizes[1], sizes[2]};
  if (at != end || sizes.size() < 2 || sizes.size() > 3 || ranks_of(shape) < 1)
    throw UsageError({.problem = "not a mesh shape",
                      .operation = "parse_mesh_shape",
                      .found = fmt::format("'{}'", text),
                      .expected = "CP0xCP1 or DPxCP0xCP1, such as 2x3 or 2x2x2"});
  return shape;
}

MeshShape squarest(int ranks) {
  int cp0 = 1;
  for (int side = 1; std::int64_t{side} * side <= ranks; ++side)
    if (ranks % side == 0) cp0 = side;
  return {1, cp0, ranks / cp0};
}

DeviceMesh DeviceMesh::serial(Device device) {
  require_device(device);
  DeviceMesh mesh;
  mesh.state_ = std::make_shared<State>(Communicator::self(), 0, MeshShape{}, device,
                                        timeout_from_environment());
  return mesh;
}

DeviceMesh DeviceMesh::create(const Communicator& communicator, MeshShape shape, Device device) {
  if (communicator.size() == 0)
    throw InitError({.problem = "this rank is not part of the communicator",
                     .operation = "DeviceMesh::create"});
  Settings settings = settings_from_environment();
  // Operations of two meshes never meet, because each has a communicator of its own.
  const Communicator own = communicator.split(0, communicator.rank());
  DeviceMesh mesh;
  mesh.state_ = std::make_shared<State>(own, own.rank(), MeshShape{1, 1, own.size()}, cpu_device,
                                        settings.timeout_s);
  agree_on_shape(mesh, shape);
  check_shape(shape, own.size(), "DeviceMesh::create");
  collective_try(mesh, [&] {
    if (settings.refused) std::rethrow_exception(settings.refused);
    require_device(device);
  });
  agree_on_watchers(mesh, settings);
  mesh.state_->set_shape(shape);
  mesh.state_->device = device;
  if (is_gpu(device))
    mesh.state_->transport = choose_transport(mesh, settings.cuda_aware, mpi_is_cuda_aware(device));
  if (own.size() > 1) {
    const Communicator::Beside beside = communicator.beside();
    mesh.state_->mailbox = std::make_unique<Mailbox>(beside.communicator, beside.number);
    mesh.state_->lockstep = settings.lockstep;
    mesh.state_->check_replicas = settings.check_replicas;
  }
  mesh.state_->records.clear();
  log_line(LogLevel::info,
           fmt::format("rank {} of {} on {}", mesh.rank(), mesh.describe(), name_of(device)));
  return mesh;
}

DeviceMesh DeviceMesh::dry_run(MeshShape shape, int rank) {
  const std::int64_t ranks = ranks_of(shape);
  if (rank < 0 || rank >= ranks)
    throw InitError({.problem = "no such rank on the mesh",
                     .operation = "DeviceMesh::dry_run",
                     .found = fmt::format("rank {} of mesh {}", rank, format(shape))});
  DeviceMesh mesh;
  mesh.state_ =
      std::make_shared<State>(Communicator(), rank, shape, meta_device, timeout_from_environment());
  return mesh;
}

DeviceMesh DeviceMesh::flatten_cp() const {
  DeviceMesh mesh = *this;
  mesh.flat_ = true;
  return mesh;
}

DeviceMesh DeviceMesh::unflatten_cp() const {
  DeviceMesh mesh = *this;
  mesh.flat_ = false;
  return mesh;
}

DeviceMesh::State& DeviceMesh::state() const {
  if (!state_)
    throw InitError({.problem = "no mesh",
                     .operation = "DeviceMesh",
                     .hint = "make one with DeviceMesh::create or DeviceMesh::serial"});
  return *state_;
}

bool DeviceMesh::operator==(const DeviceMesh& other) const {
  return state_ == other.state_ && flat_ == other.flat_;
}

int DeviceMesh::ndim() const {
  return static_cast<int>(shape().size());
}
const std::vector<int>& DeviceMesh::shape() const {
  return flat_ ? state().flat.shape : state().full.shape;
}
const std::vector<int>& DeviceMesh::coordinate() const {
  return flat_ ? state().flat.coordinate : state().full.coordinate;
}
std::vector<int> DeviceMesh::coordinate_of(int rank) const {
  return coordinate_in(shape(), rank);
}
int DeviceMesh::rank_of(const std::vector<int>& coordinate) const {
  return rank_in(shape(), coordinate);
}
int DeviceMesh::rank() const {
  return state().rank;
}
int DeviceMesh::ranks() const {
  return state().shape.ranks();
}
Device DeviceMesh::device() const {
  return state().device;
}

const Transport& DeviceMesh::transport() const {
  return state().transport;
}

const std::string& DeviceMesh::axis_name(int axis) const {
  const State& s = state();
  return (flat_ ? s.flat : s.full).names[static_cast<std::size_t>(axis)];
}

std::string DeviceMesh::axes_name(std::span<const int> axes) const {
  std::string names;
  for (const int axis : axes) names += (names.empty() ? "" : "+") + axis_name(axis);
  return names;
}

std::string DeviceMesh::describe() const {
  if (!defined()) return "no mesh";
  std::string text = "mesh";
  for (int axis = 0; axis < ndim(); ++axis)
    text += fmt::format(" {}={}", axis_name(axis), size(axis));
  return text;
}

std::vector<int> DeviceMesh::group(std::span<const int> axes) const {
  std::vector<int> first = coordinate();
  std::vector<bool> varies(first.size(), false);
  for (const int axis : axes) {
    first[static_cast<std::size_t>(axis)] = 0;
    varies[static_cast<std::size_t>(axis)] = true;
  }
  std::vector<int> ranks{rank_of(first)};
  int stride = this->ranks();
  for (std::size_t axis = 0; axis < first.size(); ++axis) {
    stride /= shape()[axis];
    if (!varies[axis]) continue;
    std::vector<int> wider;
    for (const int rank : ranks)
      for (int c = 0; c < shape()[axis]; ++c) wider.push_back(rank + c * stride);
    ranks = std::move(wider);
  }
  return ranks;
}

const std::vector<CommRecord>& DeviceMesh::records() const {
  return state().records;
}
void DeviceMesh::clear_records() const {
  state().records.clear();
}

DeviceMesh::State::State(Communicator comm, int own_rank, MeshShape mesh_shape, Device mesh_device,
                         double time_limit)
    : communicator(std::move(comm)), rank(own_rank), device(mesh_device), timeout_s(time_limit) {
  set_shape(mesh_shape);
}

// Messages of an operation that was given up may still arrive: their buffers outlive the mesh, and
// so does the communicator, since MPI may give the identity of a freed one to the next, which would
// then receive them.
DeviceMesh::State::~State() {
  if (unfinished.empty()) return;
  log_line(LogLevel::warning, fmt::format("operations of {} were given up; its communicator and {} "
                                          "message(s) stay until the process ends",
                                          format(shape), stranded.size()));
  static auto* const kept = new std::vector<std::pair<Communicator, std::vector<Transfer>>>;
  kept->emplace_back(std::move(communicator), std::move(stranded));
}

void DeviceMesh::State::set_shape(MeshShape mesh_shape) {
  shape = mesh_shape;
  full.shape = {shape.dp, shape.cp0, shape.cp1};
  full.names = {"dp", "cp0", "cp1"};
  flat.shape = {shape.dp, shape.cp0 * shape.cp1};
  flat.names = {"dp", "cp"};
  for (View* view : {&full, &flat}) view->coordinate = coordinate_in(view->shape, rank);
}

double DeviceMesh::State::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

}  // namespace tessera

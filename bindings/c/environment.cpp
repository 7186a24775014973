// SPDX-License-Identifier: MIT
// Versions, environments and meshes.
#include <algorithm>
#include <tuple>

#include "handles.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/mesh/fortran.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/log.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;
using c::checked;
using c::guarded;
using c::guarded_give;
using c::required;
using nlohmann::ordered_json;

namespace tessera::c {

DeviceMesh view_of(const DeviceMesh& mesh, int axes) {
  if (axes != 2 && axes != 3)
    refuse("placements", "placements for " + std::to_string(axes) + " axes, not 2 or 3");
  return axes == 2 ? mesh.flatten_cp() : mesh;
}

Placements placements_of(int axes, const int* values) {
  required(values, "placements");
  Placements placements;
  for (int axis = 0; axis < axes; ++axis) {
    const int value = values[axis];
    if (value < TESSERA_REPLICATE) refuse("placements", "there is no dim " + std::to_string(value));
    placements.push_back(value == TESSERA_REPLICATE ? Placement(Replicate{})
                                                    : Placement(Shard{value}));
  }
  return placements;
}

void give_placements(const Placements& placements, int* axes, int* values) {
  required(values, "placements");
  required(axes, "axes") = static_cast<int>(placements.size());
  std::transform(placements.begin(), placements.end(), values, [](const Placement& p) {
    return is_shard(p) ? std::get<Shard>(p).dim : static_cast<int>(TESSERA_REPLICATE);
  });
}

}  // namespace tessera::c

extern "C" {

int tessera_version(int* major, int* minor, int* patch) {
  return guarded(__func__, [&] {
    // Here and below: nothing is written unless everything can be.
    std::tie(required(major, "major"), required(minor, "minor"), required(patch, "patch")) =
        std::tuple(TESSERA_VERSION_MAJOR, TESSERA_VERSION_MINOR, TESSERA_VERSION_PATCH);
  });
}

int tessera_info(char** json) {
  return guarded(__func__, [&] {
    const MpiInfo mpi = mpi_info();
    const ordered_json info{{"tessera", version()},
                            {"compiler", compiler()},
                            {"instruction_set", instruction_set()},
                            {"instruction_sets", instruction_sets()},
                            {"cuda", built_with_cuda() ? cuda_version() : ""},
                            {"threads", thread_count()},
                            {"mpi",
                             {{"library", mpi.library},
                              {"standard", mpi.standard},
                              {"initialized", mpi.initialized},
                              {"thread_level", mpi.thread_level},
                              {"cuda_aware", mpi.cuda_aware}}}};
    c::give_text(json, info.dump());
  });
}

int tessera_threads_set(int threads) {
  return guarded(__func__, [&] { set_thread_count(threads); });
}

int tessera_log_set(void (*callback)(void* context, const char* level, const char* line),
                    void* context) {
  return guarded(__func__, [&] {
    if (callback == nullptr) return set_log_sink({});
    set_log_sink([callback, context](LogLevel level, std::string_view line) {
      callback(context, std::string(name_of(level)).c_str(), std::string(line).c_str());
    });
  });
}

int tessera_environment_create(const void* mpi_comm, tessera_environment** environment) {
  return guarded_give(__func__, environment, [&] {
    c::give(environment,
            mpi_comm == nullptr ? Communicator::self() : Communicator::duplicate(mpi_comm));
  });
}

int tessera_environment_create_fortran(int mpi_comm, tessera_environment** environment) {
  return guarded_give(__func__, environment,
                      [&] { c::give(environment, duplicate_fortran(mpi_comm)); });
}

int tessera_environment_rank(const tessera_environment* environment, int* rank) {
  return guarded(__func__, [&] {
    const Communicator& ranks = checked(environment, "environment").ranks;
    required(rank, "rank") = ranks.rank();
  });
}

int tessera_environment_size(const tessera_environment* environment, int* size) {
  return guarded(__func__, [&] {
    const Communicator& ranks = checked(environment, "environment").ranks;
    required(size, "size") = ranks.size();
  });
}

int tessera_environment_destroy(tessera_environment* environment) {
  return c::destroy(__func__, environment, "environment");
}

int tessera_mesh_create(const tessera_environment* environment, int dp, int cp0, int cp1,
                        const char* device, tessera_mesh** mesh) {
  return guarded_give(__func__, mesh, [&] {
    const Communicator& ranks = checked(environment, "environment").ranks;
    if (dp < 1 || cp0 < 1 || cp1 < 1) c::refuse("mesh", "an axis of no ranks");
    const Device where = parse_device(&required(device, "device"));
    c::give(mesh, DeviceMesh::create(ranks, {dp, cp0, cp1}, where));
  });
}

int tessera_mesh_shape(const tessera_mesh* mesh, int shape[3]) {
  return guarded(__func__, [&] {
    const std::vector<int>& values = checked(mesh, "mesh").mesh.shape();
    std::copy(values.begin(), values.end(), &required(shape, "shape"));
  });
}

int tessera_mesh_coordinate(const tessera_mesh* mesh, int coordinate[3]) {
  return guarded(__func__, [&] {
    const std::vector<int>& values = checked(mesh, "mesh").mesh.coordinate();
    std::copy(values.begin(), values.end(), &required(coordinate, "coordinate"));
  });
}

int tessera_mesh_block(const tessera_mesh* mesh, int axes, const int* placements, int ndim,
                       const int64_t* shape, int64_t* begin, int64_t* size) {
  return guarded(__func__, [&] {
    const DeviceMesh view = c::view_of(checked(mesh, "mesh").mesh, axes);
    const Shape global = c::sizes("shape", ndim, shape);
    const auto block =
        block_of(global, c::placements_of(axes, placements), view.shape(), view.coordinate());
    for (std::size_t d = 0; d < block.size(); ++d)
      std::tie((&required(begin, "begin"))[d], (&required(size, "size"))[d]) =
          std::tuple(block[d].begin, block[d].size());
  });
}

int tessera_mesh_messages(const tessera_mesh* mesh, char** json) {
  return guarded(__func__, [&] {
    ordered_json list = ordered_json::array();
    for (const CommTotal& t : totals(checked(mesh, "mesh").mesh.records()))
      list.push_back({{"op", t.op},
                      {"axis", t.axis},
                      {"count", t.count},
                      {"messages", t.messages},
                      {"bytes", t.bytes}});
    c::give_text(json, list.dump());
  });
}

int tessera_mesh_messages_clear(const tessera_mesh* mesh) {
  return guarded(__func__, [&] { checked(mesh, "mesh").mesh.clear_records(); });
}

int tessera_mesh_destroy(tessera_mesh* mesh) {
  return c::destroy(__func__, mesh, "mesh");
}

}  // extern "C"

// SPDX-License-Identifier: MIT
// The memory ledger, and parity of a layer.
#include <tuple>

#include "handles.hpp"
#include "tessera/harness/parity.hpp"
#include "tessera/harness/report.hpp"
#include "tessera/harness/sizes.hpp"
#include "tessera/mesh/transport.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/memory.hpp"

using namespace tessera;
using c::checked;
using c::guarded;
using c::required;
using nlohmann::ordered_json;

extern "C" {

int tessera_memory_total(int64_t* live, int64_t* peak) {
  return guarded(__func__, [&] {
    const MemoryCount total = memory_ledger::total();
    std::tie(required(live, "live"), required(peak, "peak")) = std::tuple(total.live, total.peak);
  });
}

int tessera_memory_report(char** json) {
  return guarded(__func__, [&] {
    ordered_json list = ordered_json::array();
    for (const auto& [key, count] : memory_ledger::entries())
      list.push_back({{"scope", key.first},
                      {"purpose", name_of(key.second)},
                      {"live", count.live},
                      {"peak", count.peak}});
    c::give_text(json, list.dump());
  });
}

int tessera_memory_reset_peak() {
  return guarded(__func__, [] { memory_ledger::reset_peak(); });
}

int tessera_memory_set_limit(int64_t bytes) {
  return guarded(__func__, [&] {
    if (bytes < 0) c::refuse("bytes", "a negative limit");
    memory_ledger::set_limit(bytes);
  });
}

int tessera_parity(const tessera_mesh* mesh, const char* layer, const char* size, int dtype,
                   uint64_t seed, int* pass, char** json) {
  return guarded(__func__, [&] {
    required(pass, "pass");
    required(json, "json");
    const DeviceMesh& on = checked(mesh, "mesh").mesh;
    const harness::Case& kind = c::case_of(layer);
    const DType type = c::dtype_of(dtype);
    if (!is_floating(type)) c::refuse("dtype", "values of a layer are f64, f32 or bf16");
    const std::string named = &required(size, "size");
    if (named != "tiny" && named != "small" && named != "medium")
      throw UsageError({.problem = "there is no such size",
                        .found = named,
                        .expected = "tiny, small or medium"});
    const MeshShape shape{on.size(kDp), on.size(kCp0), on.size(kCp1)};
    const harness::Sizes sizes = harness::sizes_of({.name = named}, shape);
    const harness::CaseResult result = harness::run_parity(kind, sizes, on, {type, seed});
    const ordered_json report = harness::to_json({.command = "tessera_parity",
                                                  .mesh = shape,
                                                  .dtype = type,
                                                  .device = on.device(),
                                                  .transport = describe(on.transport()),
                                                  .seed = seed},
                                                 {result});
    c::give_text(json, report.dump());
    *pass = result.pass() ? 1 : 0;
  });
}

}  // extern "C"

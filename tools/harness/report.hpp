// SPDX-License-Identifier: MIT
// Results for people (a table) and for programs (JSON); the same names in both.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/harness/parity.hpp"

namespace tessera::harness {

// Schema version of the JSON.
inline constexpr int kReportVersion = 1;

struct RunDescription {
  std::string command;
  MeshShape mesh;
  DType dtype = DType::f64;
  Device device;
  std::string transport;  // describe(mesh.transport())
  std::uint64_t seed = 1;
  bool default_tolerance = true;
  std::optional<Device> against = {};  // the device of parity's reference; none: the serial layer
};

std::string table_header(const RunDescription& run);
std::string table_row(const CaseResult& result);  // one case, with its failures below
std::string table_footer(const std::vector<CaseResult>& results, std::size_t skipped_files);
nlohmann::ordered_json to_json(const RunDescription& run, const std::vector<CaseResult>& results);
std::string format_bytes(std::int64_t bytes);  // "12.3 KiB"

}  // namespace tessera::harness

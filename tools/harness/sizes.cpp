// SPDX-License-Identifier: MIT
#include "tessera/harness/sizes.hpp"

#include <fmt/format.h>

#include <numeric>

#include "tessera/runtime/error.hpp"

namespace tessera::harness {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Sizes sizes_of(const SizeOptions& options, const MeshShape& mesh) {
  Sizes s{2, 12, 8};
  if (options.name == "small") s = {2, 48, 20};
  if (options.name == "medium") s = {1, 256, 128};
  s.tokens = round_up(s.tokens, std::lcm(mesh.cp0, mesh.cp1));
  s.batch = round_up(s.batch, mesh.dp);
  if (options.tokens > 0) s.tokens = options.tokens;
  if (options.channels > 0) s.channels = options.channels;
  if (options.batch > 0) s.batch = options.batch;
  s.msa = options.msa;
  if (s.channels < 2)
    throw UsageError({.problem = "one channel is too few",
                      .operation = "--channels",
                      .found = fmt::format("{}", s.channels),
                      .expected = "at least 2",
                      .hint = "norms and softmax of one channel do not depend on it, and then "
                              "nothing would be compared"});
  return s;
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "tessera/layers/run_mode.hpp"

#include <fmt/format.h>

namespace tessera {

RunMode RunMode::part(std::string_view name) const {
  RunMode mode = *this;
  mode.stream.stream = stream_id(fmt::format("{:x}.{}", stream.stream, name));
  return mode;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/runtime/gpu/reduce.hpp"

namespace tessera::TESSERA_GPU_NAMESPACE {

Parts parts_of(std::int64_t rows, std::int64_t count, Width width) {
  constexpr std::int64_t occupied = std::int64_t{1} << 17;  // lanes that keep a GPU busy
  constexpr std::int64_t fewest = 32;                       // elements of a lane
  const std::int64_t lanes = width == Width::lane ? 1 : width == Width::warp ? kWarp : 256;
  const std::int64_t wanted = occupied / std::max<std::int64_t>(rows * lanes, 1);
  const std::int64_t parts = std::max<std::int64_t>(1, std::min(wanted, count / (lanes * fewest)));
  const std::int64_t length = (count + parts - 1) / parts;
  return {length > 0 ? (count + length - 1) / length : 1, length};
}

}  // namespace tessera::TESSERA_GPU_NAMESPACE

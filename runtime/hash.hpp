// SPDX-License-Identifier: MIT
// 64-bit hashes (XXH3) of bytes, for comparing replicas and configurations bitwise.
#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/runtime/tensor.hpp"

namespace tessera {

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed = 0);
std::uint64_t hash_of(const Tensor& tensor);  // dtype, shape and row-major values

}  // namespace tessera

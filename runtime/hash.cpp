// SPDX-License-Identifier: MIT
#include "tessera/runtime/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tessera/runtime/check.hpp"

namespace tessera {

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t hash_of(const Tensor& tensor) {
  check::same_device("hash_of", {{"tensor", tensor}});
  const Tensor host = tensor.contiguous().to(cpu_device);
  const std::string header = std::string(name_of(tensor.dtype())) + format_shape(tensor.shape());
  const std::string_view values(static_cast<const char*>(host.data()),
                                static_cast<std::size_t>(host.bytes()));
  return hash_bytes(values, hash_bytes(header));
}

}  // namespace tessera

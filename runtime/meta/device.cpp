// SPDX-License-Identifier: MIT
#include "tessera/runtime/meta/device.hpp"

#include <atomic>

#include "tessera/runtime/error.hpp"

namespace tessera::meta {
namespace {

template <class Args>
void nothing(const Args&, Range) {}

Reduced no_value(const ReduceArgs&, Range) {
  throw DeviceError(
      {.problem = "a tensor on the meta device has no values", .operation = "reduce"});
}

}  // namespace

const KernelTable table{"meta",  nothing, nothing, no_value, nothing, nothing, nothing,
                        nothing, nothing, nothing, nothing,  nothing, nothing, nothing};

std::shared_ptr<void> allocate(std::int64_t bytes) {
  static std::atomic<std::uintptr_t> next{std::uintptr_t{1} << 48};
  const auto room = static_cast<std::uintptr_t>(bytes) / 64 * 64 + 64;
  return {reinterpret_cast<void*>(next.fetch_add(room)), [](void*) {}};
}

}  // namespace tessera::meta

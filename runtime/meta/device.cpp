// SPDX-License-Identifier: MIT
#include "tessera/runtime/meta/device.hpp"

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

const KernelTable table{"meta",  nothing, nothing, no_value, nothing,
                        nothing, nothing, nothing, nothing};

std::shared_ptr<void> allocate() {
  static char nowhere;  // never read or written
  return {&nowhere, [](void*) {}};
}

}  // namespace tessera::meta

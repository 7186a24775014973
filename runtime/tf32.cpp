// SPDX-License-Identifier: MIT
#include "tessera/runtime/tf32.hpp"

#include <atomic>

namespace tessera {
namespace {
std::atomic<bool> allowed_now{false};
}

bool tf32() {
  return allowed_now.load(std::memory_order_relaxed);
}
void set_tf32(bool allowed) {
  allowed_now.store(allowed, std::memory_order_relaxed);
}

}  // namespace tessera

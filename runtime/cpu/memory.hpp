// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>

namespace tessera::cpu {

// detail::allocate() for the CPU. Blocks of 1 MiB and more are kept when they are freed: the page
// faults of a fresh 64 MiB block cost as much as a product that fills it.
std::shared_ptr<void> allocate(std::int64_t bytes);

// What is kept at the moment, at most a quarter of the peak of such blocks or 256 MiB, whichever is
// more; and a way to give it back to the system.
std::int64_t cached_bytes();
void release_cache();

}  // namespace tessera::cpu

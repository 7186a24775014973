// SPDX-License-Identifier: MIT
// What the imitation has beyond the calls of every GPU: its streams are queues of functions.
#pragma once

#include <functional>

#include "tessera/runtime/gpu/driver.hpp"

namespace tessera::gpu_imitation::driver {

// Runs the work when someone waits for the stream, or for an event behind it; never before.
void enqueue(Stream stream, std::function<void()> work);

}  // namespace tessera::gpu_imitation::driver

// SPDX-License-Identifier: MIT
// What the imitation has beyond the calls of every GPU: its streams are queues of functions.
#pragma once

#include <functional>

#include "tessera/runtime/gpu/driver.hpp"

namespace tessera::gpu_imitation::driver {

// Starts a kernel: runs when someone waits for the stream, or for an event behind it; never before.
void launch(Stream stream, std::function<void()> kernel);

}  // namespace tessera::gpu_imitation::driver

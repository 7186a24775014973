// SPDX-License-Identifier: MIT
// Whether products of f32 tensors on a GPU may cut their operands to TF32, which has 10 bits of
// mantissa instead of 23, for speed. Off unless asked for. One setting per process; set it before
// the work begins, alike on all ranks.
#pragma once

namespace tessera {

bool tf32();
void set_tf32(bool allowed);

}  // namespace tessera

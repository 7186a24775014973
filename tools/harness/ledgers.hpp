// SPDX-License-Identifier: MIT
// The ledgers of the same case on two devices.
#pragma once

#include <string>
#include <vector>

#include "tessera/harness/parity.hpp"

namespace tessera::harness {

// What the functions of a layer keep and send does not depend on the device: bytes after forward by
// module path and purpose, and messages by operation and axis. Peaks do by a little: drawn numbers
// and indices are made on the host, and kernels differ in workspace. Empty if they agree.
std::vector<std::string> compare_ledgers(const CaseResult& found, const CaseResult& expected);

}  // namespace tessera::harness

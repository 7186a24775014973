// SPDX-License-Identifier: MIT
// The ledgers of the same case on two devices.
#pragma once

#include <string>
#include <vector>

#include "tessera/harness/parity.hpp"

namespace tessera::harness {

// What the functions of a layer keep, take and send does not depend on the device: bytes after
// forward and peaks by module path and purpose, and messages by operation and axis. Only peaks of
// workspace do, whose chunks fit each device and its threads. Empty if they agree.
std::vector<std::string> compare_ledgers(const CaseResult& found, const CaseResult& expected);

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "failure.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/error.hpp"

namespace tessera::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(3);

bool complete(std::vector<Communicator::Request>& requests, Clock::time_point deadline) {
  for (Communicator::Request& request : requests)
    while (!request.test()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  return true;
}

int exit_code_of(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return static_cast<int>(own ? own->exit_code() : ExitCode::check_failed);
}

}  // namespace

int agree_on_failure(const Communicator& world, const std::exception& error) {
  const std::int64_t code = exit_code_of(error);
  const int size = world.size();
  const int tag = world.max_tag();  // of no operation
  std::vector<std::int64_t> codes(static_cast<std::size_t>(size), 0);
  std::vector<Communicator::Request> requests;
  for (int peer = 0; peer < size; ++peer)
    if (peer != world.rank())
      requests.push_back(
          world.receive(peer, &codes[static_cast<std::size_t>(peer)], sizeof code, tag));
  for (int peer = 0; peer < size; ++peer)
    if (peer != world.rank()) requests.push_back(world.send(peer, &code, sizeof code, tag));
  const bool all = complete(requests, Clock::now() + kPatience);
  if (!all) {
    std::fprintf(stderr, "tessera: rank %d of %d: %s\n", world.rank(), size, error.what());
    std::fflush(stderr);
    Environment::abort(static_cast<int>(code));
  }
  if (world.rank() == 0) std::fprintf(stderr, "tessera: %s\n", error.what());
  return static_cast<int>(world.rank() == 0 ? code : codes.front());
}

}  // namespace tessera::tools

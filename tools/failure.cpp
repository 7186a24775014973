// SPDX-License-Identifier: MIT
#include "failure.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/mesh/activity.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/variables.hpp"

namespace tessera::tools {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(3);
constexpr auto kSpeakersTurn = std::chrono::seconds(2);

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return static_cast<int>(ExitCode::out_of_memory);
  const auto* own = dynamic_cast<const Error*>(&error);
  return static_cast<int>(own ? own->exit_code() : ExitCode::check_failed);
}

// By rank; none for ranks that did not get here in time.
using Codes = std::vector<std::optional<std::int64_t>>;

// The buffers outlive the function: messages of late ranks may still come.
Codes exchange_codes(const Communicator& world, std::int64_t own) {
  struct Slot {
    std::int64_t code = 0;
    Communicator::Request received, sent;
  };
  const int tag = world.max_tag();  // of no operation
  static std::vector<Slot> slots;
  static std::int64_t sent_code = 0;
  sent_code = own;
  slots.resize(static_cast<std::size_t>(world.size()));
  Codes codes(slots.size());
  const auto me = static_cast<std::size_t>(world.rank());
  codes[me] = own;
  for (std::size_t k = 0; k < slots.size(); ++k) {
    if (k == me) continue;
    const int peer = static_cast<int>(k);
    slots[k].received = world.receive(peer, &slots[k].code, sizeof own, tag);
    slots[k].sent = world.send(peer, &sent_code, sizeof own, tag);
  }
  const auto deadline = Clock::now() + kPatience;
  for (bool all = false; !all && Clock::now() < deadline;) {
    all = true;
    for (std::size_t k = 0; k < slots.size(); ++k) {
      if (k == me) continue;
      if (!codes[k] && slots[k].received.test()) codes[k] = slots[k].code;
      all = slots[k].sent.test() && codes[k] && all;
    }
    if (!all) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return codes;
}

bool is_consequence(std::int64_t code) {
  return code == static_cast<std::int64_t>(ExitCode::timeout);
}

// The lowest rank whose error is not the consequence of another's, else the lowest.
std::size_t speaker_of(const Codes& codes) {
  const auto cause = std::find_if(codes.begin(), codes.end(),
                                  [](const auto& c) { return c && !is_consequence(*c); });
  const auto any = std::find_if(codes.begin(), codes.end(), [](const auto& c) { return !!c; });
  return static_cast<std::size_t>((cause != codes.end() ? cause : any) - codes.begin());
}

void say(const std::string& text) {
  std::fprintf(stderr, "tessera: %s\n", text.c_str());
  std::fflush(stderr);
}

std::atomic<bool> reporting = true;

std::string memory_lines(std::size_t most) {
  using Entry = std::pair<memory_ledger::Key, MemoryCount>;
  const auto all = memory_ledger::entries();
  std::vector<Entry> entries(all.begin(), all.end());
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.second.live != b.second.live ? a.second.live > b.second.live
                                          : a.second.peak > b.second.peak;
  });
  const MemoryCount total = memory_ledger::total();
  std::string text = fmt::format("memory: {} bytes live, {} at the peak\n", total.live, total.peak);
  for (std::size_t k = 0; k < std::min(most, entries.size()); ++k) {
    const auto& [key, count] = entries[k];
    text += fmt::format("  {:>14} live {:>14} peak  {:<13} {}\n", count.live, count.peak,
                        name_of(key.second), key.first.empty() ? "(no layer)" : key.first);
  }
  return text;
}

// Of a few layers for people, of many in a file.
std::string report(int rank, int signal, std::size_t layers) {
  return fmt::format("rank {} was told to end (signal {})\n{}{}", rank, signal,
                     describe(current_activity()), memory_lines(layers));
}

[[noreturn]] void end_by_signal(int signal) {
  if (!reporting) std::_Exit(128 + signal);
  const int rank = launched_rank();
  if (const std::string folder = text_from_environment("TESSERA_REPORT_DIR"); !folder.empty()) {
    const std::string path = fmt::format("{}/tessera.rank{}.terminated.txt", folder, rank);
    if (std::FILE* file = std::fopen(path.c_str(), "w")) {
      std::fputs(report(rank, signal, 100).c_str(), file);
      std::fclose(file);
    }
  }
  if (rank == 0) say(report(rank, signal, 5));
  // The launcher kills the other ranks when the first one ends: let them write, too.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::_Exit(128 + signal);
}

}  // namespace

int agree_on_failure(const Communicator& world, const std::exception& error) {
  stop_reporting();
  const Codes codes = exchange_codes(world, exit_code_of(error));
  const std::size_t speaker = speaker_of(codes);
  const int code = static_cast<int>(*codes[speaker]);
  const bool speaks = speaker == static_cast<std::size_t>(world.rank());
  const bool all_here = std::all_of(codes.begin(), codes.end(), [](const auto& c) { return !!c; });
  if (all_here) {
    if (speaks) say(error.what());
    return code;
  }
  if (speaks)
    say(fmt::format("rank {} of {}: {}", world.rank(), world.size(), error.what()));
  else
    std::this_thread::sleep_for(kSpeakersTurn);
  Environment::abort(code);
}

void report_on_termination() {
  const std::string folder = text_from_environment("TESSERA_REPORT_DIR");
  std::error_code unreadable;  // is as not there
  if (!folder.empty() && !std::filesystem::is_directory(folder, unreadable))
    refuse_variable("TESSERA_REPORT_DIR", folder, "a folder that is there");
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  // Threads made later inherit the mask, so that only the one below gets the signal.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals] {
    int signal = 0;
    if (sigwait(&signals, &signal) == 0) end_by_signal(signal);
  }).detach();
}

void stop_reporting() {
  reporting = false;
}

int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* value = std::getenv(name)) return std::atoi(value);
  return 0;
}

}  // namespace tessera::tools

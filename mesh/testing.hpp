// SPDX-License-Identifier: MIT
// Deliberate mistakes, so that tests can show that the checks would find them. In builds without
// TESSERA_TEST_HOOKS there are none and nothing is asked.
#pragma once

#include "tessera/mesh/comm_ledger.hpp"

namespace tessera {

enum class Mutation {
  none,
  reverse_ring,              // shift() sends the other way round
  drop_skew,                 // one operand is not brought to its start
  drop_last_rotation,        // sums that travel end one rank away from their start
  skip_parameter_reduction,  // parameter gradients stay partial
  reduce_over_replicate_axis,
  corrupt_probe,      // a message of the start-up probe arrives with a wrong bit
  send_too_early,     // MPI reads memory that a device may still write
  receive_too_early,  // MPI, or a copy for it, writes memory that a device may still read
  read_too_early,     // a device does not wait for what has arrived in host memory
};

#ifdef TESSERA_TEST_HOOKS
// TESSERA_MUTATION=<name of the enumerator> sets the first value; UsageError for other names.
Mutation mutation();
void set_mutation(Mutation value);

// Called before an operation posts messages, so that a test can fail in the middle of one. A plain
// function pointer; nullptr: none.
using StepHook = void (*)(const CommRecord& step);
void set_step_hook(StepHook hook);
void at_step(const CommRecord& step);
#else
inline void at_step(const CommRecord&) {}
constexpr Mutation mutation() {
  return Mutation::none;
}
#endif

}  // namespace tessera

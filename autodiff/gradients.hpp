// SPDX-License-Identifier: MIT
// Parameter gradients: from per-rank contributions to the finished, replicated gradient.
#pragma once

#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

// Label of a parameter gradient that was formed from an activation with these placements: summand
// (P(sum)) on the axes on which the activation is sharded, complete (R) on the others.
// `local` has the parameter's shape, in at least f32.
DTensor parameter_gradient(const Tensor& local, const DTensor& parameter,
                           const Placements& activation);

// Collective. Turns the contributions of each parameter into one gradient, replicated and bitwise
// equal on all ranks, in the parameter's dtype. Contributions that are complete on an axis of size
// P are scaled by 1/P, which makes all of them summands on all axes; then one sum over the whole
// mesh, in at least f32, of all parameters in one buffer in the order given. Parameters without
// contribution are left alone: which those are is equal on all ranks.
// Messages: one all_reduce of sum(numel) elements over all axes.
void reduce_gradients(const DeviceMesh& mesh, std::vector<Var>& parameters);

// What reduce_gradients() will send for parameters that all have contributions, under the current
// scope: a line of the contract.
MessageCount reduction_message(const DeviceMesh& mesh, const std::vector<Var>& parameters);

}  // namespace tessera

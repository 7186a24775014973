// SPDX-License-Identifier: MIT
// Activation checkpointing (Chen et al., arXiv:1604.06174): a part of the computation keeps only
// its inputs for the backward pass, which runs it a second time.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/autodiff/tape.hpp"

namespace tessera {

using NamedVars = std::vector<std::pair<std::string, Var>>;
using CheckpointBody = std::function<std::vector<Var>(const std::vector<Var>& inputs)>;

// body(inputs), with the same results and gradients. `body` is called again in the backward pass,
// under the same scope; it must compute the same each time (random numbers by counter), must reach
// other intermediate results only through `inputs`, and whatever it captures must live until then.
// Parameters may be captured: their gradients go to their leaves. Under a NoGrad, or if nothing in
// it wants a gradient, it is only called.
//   Gradients are bitwise those without checkpoint: their terms are added in the same order.
//   Messages: those of body's functions, and the forward ones a second time in backward.
//   Saved: the own blocks of the inputs, as they are placed.
//   Checkpoints nest. TypeError: an input is undefined. GradientError: a result of body is one of
//   its inputs, not computed.
std::vector<Var> checkpoint(const NamedVars& inputs, CheckpointBody body);

}  // namespace tessera

// SPDX-License-Identifier: MIT
// The parameters of a Linear, for layers that apply it inside a function of their own: registers
// "weight" [out, in] and perhaps "bias" [out], so that names are those of a Linear.
#pragma once

#include "tessera/layers/module.hpp"

namespace tessera {

class Weight : public Module {
 public:
  Weight(const Build& build, std::int64_t in, std::int64_t out, Init init, bool bias = false)
      : Module(build), weight_(add_parameter("weight", {out, in}, init)) {
    if (bias) bias_ = add_parameter("bias", {out}, init);
  }
  const Var& weight() const { return weight_; }
  const Var& bias() const { return bias_; }

 private:
  Var weight_, bias_;
};

}  // namespace tessera

// SPDX-License-Identifier: MIT
// The parameter of a Linear without bias, for layers that apply it inside a function of their own:
// registers "weight" [out, in], so that names are those of a Linear.
#pragma once

#include "tessera/layers/module.hpp"

namespace tessera {

class Weight : public Module {
 public:
  Weight(const Build& build, std::int64_t in, std::int64_t out, Init init)
      : Module(build), weight_(add_parameter("weight", {out, in}, init)) {}
  const Var& weight() const { return weight_; }

 private:
  Var weight_;
};

}  // namespace tessera

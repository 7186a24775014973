// SPDX-License-Identifier: MIT
#include "tessera/harness/cases/operations.hpp"

#include <nlohmann/json.hpp>
#include <utility>

namespace tessera::harness {

Case operation(std::string name, std::string description,
               std::function<Inputs(const Sizes&)> inputs,
               std::function<std::vector<Var>(const std::vector<Var>&)> forward,
               std::vector<std::string> outputs) {
  Case k;
  k.name = "substrate." + std::move(name);
  k.description = std::move(description);
  k.outputs = std::move(outputs);
  k.inputs = inputs({});  // names and placements do not depend on the sizes
  k.problem = [inputs](const Sizes& sizes) {
    return Problem{std::make_shared<nlohmann::json>(nlohmann::json::object()), inputs(sizes)};
  };
  k.build = [forward](const Build& build, const nlohmann::json&) {
    return Instance{std::make_unique<Module>(build), forward};
  };
  return k;
}

InputSpec pair(const Sizes& s, const char* name) {
  return {.name = name,
          .shape = {s.batch, s.tokens, s.tokens, s.channels},
          .placements = pair_placements()};
}

InputSpec single(const Sizes& s, const char* name) {
  return {
      .name = name, .shape = {s.batch, s.tokens, s.channels}, .placements = single_placements()};
}

}  // namespace tessera::harness

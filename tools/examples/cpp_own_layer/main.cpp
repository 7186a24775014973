// SPDX-License-Identifier: MIT
// The program `tessera` with a case more: own_layer parity --case 'own.*'.
#include <tessera/harness/layer_case.hpp>
#include <tessera/program.hpp>

#include "gated_row_mean.hpp"

using namespace tessera;
using namespace tessera::harness;

namespace {

Case gated_row_mean_case() {
  return case_of<GatedRowMean>(
      {.name = "own.gated_row_mean",
       .description = "The mean of a row through a gate",
       .inputs =
           [](const Sizes& s) {
             return std::vector<InputSpec>{activation("x", Class::pair, s, s.channels)};
           },
       .hyperparameters =
           [](const Sizes& s) {
             return nlohmann::json{{"channels", s.channels}};
           },
       .build =
           [](const Build& build, const nlohmann::json& h) {
             return std::make_unique<GatedRowMean>(build, h.at("channels"));
           },
       .forward =
           [](const GatedRowMean& layer, const std::vector<Var>& in) {
             return std::vector<Var>{layer.forward(in[0])};
           }});
}

}  // namespace

int main(int argc, char** argv) {
  return program::run(argc, argv, {gated_row_mean_case()});
}

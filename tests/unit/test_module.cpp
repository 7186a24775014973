// SPDX-License-Identifier: MIT
// ranks: 1
#include "tessera/layers/module.hpp"

#include <cmath>

#include "support/catch.hpp"
#include "support/errors.hpp"
#include "tessera/layers/trunk/transition.hpp"
#include "tessera/layers/trunk/triangle_multiplication.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/ops.hpp"

using namespace tessera;

namespace {

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> all;
  for (const NamedParameter& p : module.named_parameters()) all.push_back(p.name);
  return all;
}

Build serial(DType dtype = DType::f64) {
  return {DeviceMesh::serial(), dtype};
}

}  // namespace

TEST_CASE("names and order are those of the serial reference") {
  const Transition transition(serial(), 4, 8);
  CHECK(names(transition) == std::vector<std::string>{"norm.weight", "norm.bias", "fc1.weight",
                                                      "fc2.weight", "fc3.weight"});
  const TriangleMultiplication triangle(serial(), 4, TriangleDirection::outgoing);
  CHECK(names(triangle) == std::vector<std::string>{
                               "norm_in.weight", "norm_in.bias", "p_in.weight", "g_in.weight",
                               "norm_out.weight", "norm_out.bias", "p_out.weight", "g_out.weight"});
}

TEST_CASE("a state dict that does not fit lists everything and changes nothing") {
  Transition transition(serial(), 4, 8);
  transition.initialize(1);
  StateDict state = transition.state();
  const std::uint64_t before = hash_of(transition.parameters()[2].value().local());
  state.erase("norm.bias");
  state["fc2.weight"] = Tensor::zeros({8, 5}, DType::f64);
  state["fc1.weight"] = Tensor::full({8, 4}, 3, DType::f64);
  state["fc9.weight"] = Tensor::zeros({1}, DType::f64);
  require_error<StateDictError>([&] { transition.load_state(state); }, "missing: norm.bias",
                                "fc2.weight [8, 5] instead of [8, 4]", "unexpected: fc9.weight");
  CHECK(hash_of(transition.parameters()[2].value().local()) == before);
}

TEST_CASE("a state round trip is exact and casts to the parameters' dtype") {
  Transition a(serial(), 4, 8), b(serial(), 4, 8), single(serial(DType::f32), 4, 8);
  a.initialize(1);
  b.initialize(2);
  b.load_state(a.state());
  single.load_state(a.state());
  for (std::size_t k = 0; k < a.parameters().size(); ++k) {
    CHECK(hash_of(a.parameters()[k].value().local()) == hash_of(b.parameters()[k].value().local()));
    CHECK(single.parameters()[k].value().dtype() == DType::f32);
    CHECK(max_difference(single.parameters()[k].value().local().to(DType::f64),
                         a.parameters()[k].value().local())
              .max_abs < 1e-6);
  }
}

TEST_CASE("initialisers have the spread they promise") {
  Transition t(serial(), 64, 256);
  t.initialize(3);
  const StateDict state = t.state();
  const Tensor& fc1 = state.at("fc1.weight");
  const double deviation = std::sqrt(sum_of_squares(fc1) / static_cast<double>(fc1.numel()));
  CHECK(std::abs(deviation * 8 - 1) < 0.03);  // 16384 draws: the deviation is known to 0.6 %
  CHECK(max_abs(fc1) <= 2.0 / 8 / 0.8796256610342398);
  CHECK(max_abs(state.at("fc3.weight")) == 0);
  CHECK(state.at("norm.weight").item({5}) == 1);
  CHECK(hash_of(fc1) != hash_of(state.at("fc2.weight")));
}

// SPDX-License-Identifier: MIT
// The examples c_triangle and fortran_triangle by the C++ interface: the same bits are expected.
//   triangle FILE
#include <cstdio>
#include <fstream>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/trunk/triangle_multiplication.hpp"
#include "tessera/mesh/environment.hpp"

namespace {

using namespace tessera;

constexpr std::int64_t kBatch = 2, kTokens = 12, kChannels = 8;

double number(std::int64_t index, std::int64_t kind) {
  return static_cast<double>((index * 37 + kind * 11) % 256 - 128) / 128;
}

template <class Value>
Tensor tabulated(const Shape& shape, const Value& value) {
  std::vector<double> values;
  for (std::int64_t index = 0; index < numel(shape); ++index) values.push_back(value(index));
  return Tensor::from_values(shape, values, DType::f64);
}

DTensor pair(const DeviceMesh& mesh, std::int64_t kind) {
  const Tensor full = tabulated({kBatch, kTokens, kTokens, kChannels},
                                [kind](std::int64_t index) { return number(index, kind); });
  return distribute(full, mesh, pair_placements());
}

DTensor mask(const DeviceMesh& mesh) {
  const Tensor full = tabulated({kBatch, kTokens, kTokens},
                                [](std::int64_t index) { return index % 7 == 3 ? 0.0 : 1.0; });
  return distribute(full, mesh, pair_placements());
}

void append(std::vector<double>& results, const Tensor& tensor) {
  const std::vector<double> values = to_values(tensor);
  results.insert(results.end(), values.begin(), values.end());
}

std::vector<double> run(const DeviceMesh& mesh) {
  TriangleMultiplication layer({mesh, DType::f64}, kChannels, TriangleDirection::outgoing);
  StateDict state;
  std::int64_t kind = 3;
  for (const NamedParameter& p : layer.named_parameters()) {
    state[p.name] = tabulated(p.var.value().shape(),
                              [kind](std::int64_t index) { return number(index, kind) / 2; });
    ++kind;
  }
  layer.load_state(state);
  Tape tape;
  const Var x = tape.input("x", pair(mesh, 0), true);
  const Var y = layer.forward(x, tape.input("mask", mask(mesh), false));
  tape.backward(y, pair(mesh, 2));
  std::vector<Var> parameters = layer.parameters();
  reduce_gradients(mesh, parameters);

  std::vector<double> results;
  append(results, full_tensor(y.value()));
  append(results, full_tensor(x.grad()));
  for (const Var& p : parameters) append(results, p.grad().local());
  return results;
}

}  // namespace

int main(int argc, char** argv) {
  const Environment environment(argc, argv);
  const MeshShape shape = squarest(environment.world().size());
  const std::vector<double> results = run(DeviceMesh::create(environment.world(), shape));
  if (environment.world().rank() != 0) return 0;
  std::ofstream file(argc > 1 ? argv[1] : "", std::ios::binary);
  file.write(reinterpret_cast<const char*>(results.data()),
             static_cast<std::streamsize>(results.size() * sizeof(double)));
  return file.good() ? 0 : 2;
}

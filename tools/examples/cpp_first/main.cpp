// SPDX-License-Identifier: MIT
// A pair tensor over all ranks, one layer forward and backward. Prints the same gradient on every
// number of ranks, and less memory per rank.
#include <cstdio>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/layers/trunk/triangle_multiplication.hpp"
#include "tessera/mesh/environment.hpp"

using namespace tessera;

int main(int argc, char** argv) {
  const Environment environment(argc, argv);  // initialises MPI, if nobody has
  const Communicator world = environment.world();
  const DeviceMesh mesh = DeviceMesh::create(world, squarest(world.size()));

  TriangleMultiplication layer({mesh, DType::f64}, 16, TriangleDirection::outgoing);
  // Random by seed and name, the same on every mesh. Not initialize(): the last weight of a layer
  // begins at zero, and so would all gradients.
  for (NamedParameter p : layer.named_parameters())
    p.var.set_value(uniform(p.var.value().shape(), DType::f64, mesh, replicated_placements(),
                            {1, stream_id(p.name)}, -0.5, 0.5));

  const Shape shape{1, 12, 12, 16};
  const auto random = [&](const char* name) {  // each rank draws its own tile only
    return normal(shape, DType::f64, mesh, pair_placements(), {1, stream_id(name)});
  };
  Tape tape;
  const Var x = tape.input("x", random("x"), true);
  const DTensor mask = bernoulli({1, 12, 12}, DType::f64, mesh, pair_placements(), {1, 2}, 0.9);
  const Var y = layer.forward(x, Var::constant(mask));
  const auto kept = static_cast<long long>(tape.saved_bytes());
  tape.backward(y, random("gradient of y"));
  std::vector<Var> parameters = layer.parameters();
  reduce_gradients(mesh, parameters);  // one message

  const double value = full_tensor(x.grad()).item({0, 3, 7, 5});
  if (world.rank() == 0)
    std::printf("%s: x is %s, %lld bytes kept, dx[0,3,7,5] = %.12f\n", mesh.describe().c_str(),
                x.value().describe().c_str(), kept, value);
  return 0;
}

// SPDX-License-Identifier: MIT
// Uses a little of each folder, so that the link needs what the package must find.
#include <cstdio>

#include "tessera/autodiff/tape.hpp"
#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/environment.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/tensor.hpp"

int main(int argc, char** argv) {
  const tessera::Environment environment(argc, argv);
  const auto mesh = tessera::DeviceMesh::serial();
  const auto x = tessera::Tensor::full({2, 3}, 7, tessera::DType::f64);
  const double value = x.transpose(0, 1).contiguous().host_data<double>()[5];
  std::printf("tessera %s: %s, value %g\n", tessera::version().c_str(), mesh.describe().c_str(),
              value);
  return value == 7 ? 0 : 1;
}

// SPDX-License-Identifier: MIT
// What the handles of tessera.h are: values of the library, which share what they are made of.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "guard.hpp"
#include "tessera/harness/case.hpp"
#include "tessera/mesh/communicator.hpp"
#include "tessera/mesh/device_mesh.hpp"
#include "tessera/mesh/dtensor.hpp"
#include "tessera/runtime/tensor.hpp"

struct tessera_environment {
  tessera::Communicator ranks;
};

struct tessera_mesh {
  tessera::DeviceMesh mesh;
};

struct tessera_tensor {
  tessera::Tensor tensor;
  std::string device;
};

struct tessera_dtensor {
  tessera::DTensor dtensor;
};

namespace tessera::c {

struct Layer {
  const harness::Case* kind;
  DeviceMesh mesh;
  harness::Instance instance;
  std::vector<NamedParameter> parameters;
};

// A forward pass; its functions refer to the layer.
struct Run {
  std::shared_ptr<const Layer> layer;
  Tape tape = {};
  std::vector<Var> inputs = {};
  std::vector<Var> outputs = {};
};

// UsageError unless the harness has a case of this name.
const harness::Case& case_of(const char* name);

void give_tensor(tessera_tensor** out, Tensor tensor);

// `axes` is 2 or 3: the view of the mesh that the placements are for.
DeviceMesh view_of(const DeviceMesh& mesh, int axes);
Placements placements_of(int axes, const int* values);
void give_placements(const Placements& placements, int* axes, int* values);

}  // namespace tessera::c

struct tessera_layer {
  std::shared_ptr<const tessera::c::Layer> layer;
};

struct tessera_run {
  std::unique_ptr<tessera::c::Run> run;
};

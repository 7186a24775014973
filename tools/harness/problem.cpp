// SPDX-License-Identifier: MIT
#include "harness/problem.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/runtime/ops.hpp"

namespace tessera::harness {
namespace {

// Nothing may start at zero: zero-initialised projections would hide the whole layer.
void randomize(const Module& module, std::uint64_t seed) {
  for (const NamedParameter& p : module.named_parameters()) {
    const Tensor& t = p.var.value().local();
    const RandomStream stream{seed, stream_id("param." + p.name)};
    if (t.ndim() >= 2) {
      const double bound = std::sqrt(6.0 / static_cast<double>(t.size(0) + t.size(1)));
      fill_uniform(t, stream, whole(t.shape()), -bound, bound);
    } else {
      const double centre = p.init == Init::one ? 1 : 0;
      fill_uniform(t, stream, whole(t.shape()), centre - 0.5, centre + 0.5);
    }
  }
}

// Four fifths ones by global index, and token row 1 of sample 0 without any.
void fill_mask(const Tensor& local, RandomStream stream, const GlobalBlock& block) {
  fill_bernoulli(local, stream, block, 0.8);
  const std::int64_t row = 1 - block.offset[1];
  if (local.ndim() >= 2 && block.offset[0] == 0 && row >= 0 && row < local.size(1))
    fill(local.select(0, 0).select(0, row), 0);
}

DTensor random_input(const InputSpec& spec, const DeviceMesh& mesh, DType dtype,
                     std::uint64_t seed) {
  block_of(spec.shape, spec.placements, mesh.shape(), mesh.coordinate(), "parity",
           spec.name.c_str());
  const RandomStream stream{seed, stream_id("in." + spec.name)};
  if (spec.kind == InputKind::values)
    return uniform(spec.shape, dtype, mesh, spec.placements, stream, -1, 1);
  const DTensor mask = empty(spec.shape, dtype, mesh, spec.placements);
  fill_mask(mask.local(), stream, global_block(spec.shape, mesh, spec.placements));
  return mask;
}

}  // namespace

Setup random_setup(const Case& c, const Problem& problem, const DeviceMesh& mesh, DType dtype,
                   std::uint64_t seed) {
  Setup setup;
  setup.instance = c.build({mesh, at_least_f32(dtype)}, *problem.hyperparameters);
  randomize(*setup.instance.module, seed);
  setup.specs = problem.inputs;
  for (const InputSpec& spec : problem.inputs)
    setup.inputs.push_back(random_input(spec, mesh, dtype, seed));
  setup.upstream = [seed](const DTensor& y) {
    return uniform(y.shape(), y.dtype(), y.mesh(), y.placements(), {seed, stream_id("gout")}, -1,
                   1);
  };
  return setup;
}

}  // namespace tessera::harness

// SPDX-License-Identifier: MIT
#include "tessera/harness/problem.hpp"

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

// The own block of values that are given by global index.
DTensor tabulated(const InputSpec& spec, const DeviceMesh& mesh, DType dtype) {
  const DTensor x = empty(spec.shape, dtype_of(spec, dtype), mesh, spec.placements);
  const GlobalBlock block = global_block(spec.shape, mesh, spec.placements);
  const Shape& local = x.local().shape();
  std::vector<double> values;
  std::vector<std::int64_t> index = block.offset;
  for (std::int64_t k = 0; k < x.local().numel(); ++k) {
    values.push_back(spec.at(index));
    for (std::size_t d = local.size(); d-- > 0;) {
      if (++index[d] < block.offset[d] + local[d]) break;
      index[d] = block.offset[d];
    }
  }
  return x.with_local(Tensor::from_values(local, values, x.dtype()).to(mesh.device()));
}

DTensor random_input(const InputSpec& spec, const DeviceMesh& mesh, DType dtype,
                     std::uint64_t seed) {
  block_of(spec.shape, spec.placements, mesh.shape(), mesh.coordinate(), "parity",
           spec.name.c_str());
  const RandomStream stream{seed, stream_id("in." + spec.name)};
  if (spec.at) return tabulated(spec, mesh, dtype);
  if (spec.kind == InputKind::values || spec.kind == InputKind::index) {
    const bool index = spec.kind == InputKind::index;
    const DTensor x = uniform(spec.shape, index ? DType::f64 : dtype, mesh, spec.placements, stream,
                              spec.low, spec.high);
    return x.with_local(x.local().to(dtype_of(spec, dtype)));
  }
  const DTensor mask = empty(spec.shape, dtype, mesh, spec.placements);
  fill_mask(mask.local(), stream, global_block(spec.shape, mesh, spec.placements));
  return mask.with_local(mask.local().to(dtype_of(spec, dtype)));
}

}  // namespace

DType dtype_of(const InputSpec& spec, DType dtype) {
  if (spec.kind == InputKind::index) return DType::i64;
  return spec.kind == InputKind::boolean ? DType::boolean : dtype;
}

Setup random_setup(const Case& c, const Problem& problem, const DeviceMesh& mesh, DType dtype,
                   std::uint64_t seed) {
  Setup setup;
  setup.instance = c.build({mesh, at_least_f32(dtype)}, *problem.hyperparameters);
  randomize(*setup.instance.module, seed);
  setup.specs = problem.inputs;
  for (const InputSpec& spec : problem.inputs) {
    const bool flat = std::ssize(spec.placements) < mesh.ndim();
    setup.inputs.push_back(random_input(spec, flat ? mesh.flatten_cp() : mesh, dtype, seed));
  }
  setup.upstream = [seed](const DTensor& y, std::size_t number) {
    const RandomStream stream{seed, stream_id("gout") + number};
    return uniform(y.shape(), y.dtype(), y.mesh(), y.placements(), stream, -1, 1);
  };
  return setup;
}

std::vector<Var> inputs_on(Tape& tape, const Setup& setup) {
  std::vector<Var> inputs;
  for (std::size_t k = 0; k < setup.inputs.size(); ++k)
    inputs.push_back(
        tape.input(setup.specs[k].name, setup.inputs[k], setup.specs[k].differentiable));
  return inputs;
}

std::vector<Tape::Seed> seeds(const Setup& setup, const std::vector<Var>& outputs) {
  std::vector<Tape::Seed> all;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!outputs[k].requires_grad()) continue;
    DTensor gradient = setup.upstream(outputs[k].value(), k);
    if (gradient.defined()) all.push_back({outputs[k], std::move(gradient)});
  }
  return all;
}

}  // namespace tessera::harness

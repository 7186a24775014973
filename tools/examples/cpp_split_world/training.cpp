// SPDX-License-Identifier: MIT
#include "training.hpp"

#include <tessera/autodiff/gradients.hpp>
#include <tessera/layers/trunk/pairformer.hpp>
#include <tessera/mesh/collectives.hpp>
#include <tessera/runtime/ops.hpp>

using namespace tessera;

namespace {

constexpr std::int64_t kTokens = 12;
constexpr std::int64_t kSingle = 16;
constexpr std::int64_t kPair = 8;
constexpr double kRate = 0.5;

// The squares of x - target, summed over the own block, and their gradient.
struct Distance {
  Tensor own_sum;
  DTensor gradient;
};
Distance distance(const Var& x, const DTensor& target) {
  const Tensor& local = x.value().local();
  const double elements = static_cast<double>(numel(x.value().shape()));
  const Tensor difference = Tensor::empty(local.shape(), local.dtype(), local.device());
  add(1, local, -1, target.local(), difference);
  const double sum = sum_of_squares(difference) / (2 * elements);
  scale(1 / elements, difference);
  return {Tensor::from_values({1}, {sum}, DType::f64), x.value().with_local(difference)};
}

void descend(const Module& layer) {
  for (Var parameter : layer.parameters()) {
    const Tensor& value = parameter.value().local();
    add(1, value, -kRate, parameter.grad().local(), value);
    parameter.zero_grad();
  }
}

}  // namespace

TrainingResult train(MPI_Comm comm, int steps) {
  const Communicator communicator = Communicator::duplicate(&comm);
  const DeviceMesh mesh = DeviceMesh::create(communicator, squarest(communicator.size()));
  PairformerLayer layer({mesh, DType::f32},
                        {.token_s = kSingle,
                         .num_heads = 4,
                         .pairs = {.token_z = kPair, .head_width = 4, .num_heads = 2}});
  layer.initialize(7);

  const Shape single{1, kTokens, kSingle};
  const Shape pair{1, kTokens, kTokens, kPair};
  const auto random = [&](const Shape& shape, const Placements& placements, const char* name) {
    return uniform(shape, DType::f32, mesh, placements, {1, stream_id(name)}, -1, 1);
  };
  const auto ones = [&](Shape shape, const Placements& placements) {
    shape.pop_back();
    const DTensor mask = empty(shape, DType::f32, mesh, placements);
    fill(mask.local(), 1);
    return Var::constant(mask);
  };
  const DTensor s = random(single, single_placements(), "s");
  const DTensor z = random(pair, pair_placements(), "z");
  const auto halved = [](const DTensor& x) {
    const Tensor half = x.local().clone();
    scale(0.5, half);
    return x.with_local(half);
  };
  const DTensor s_target = halved(s);
  const DTensor z_target = halved(z);
  const Var mask = ones(single, single_placements());
  const Var pair_mask = ones(pair, pair_placements());

  TrainingResult result;
  for (int k = 0; k < steps; ++k) {
    Tape tape;
    const SingleAndPair x{tape.input("s", s, false), tape.input("z", z, false)};
    const SingleAndPair y = layer.forward(x, mask, pair_mask, RunMode{});
    const Distance ds = distance(y.s, s_target);
    const Distance dz = distance(y.z, z_target);
    tape.backward({{y.s, ds.gradient}, {y.z, dz.gradient}});
    std::vector<Var> parameters = layer.parameters();
    reduce_gradients(mesh, parameters);
    descend(layer);

    // s is whole along cp1, z is not.
    all_reduce(mesh, std::array{kDp, kCp0}, ReduceOp::sum, ds.own_sum, "loss of s");
    all_reduce(mesh, std::array{kDp, kCp0, kCp1}, ReduceOp::sum, dz.own_sum, "loss of z");
    result.last_loss = ds.own_sum.item() + dz.own_sum.item();
    if (k == 0) result.first_loss = result.last_loss;
  }
  return result;
}

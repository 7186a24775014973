// SPDX-License-Identifier: MIT
#include "tessera/autodiff/gradcheck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/random.hpp"

namespace tessera {
namespace {

// Sum over the mesh of a number that differs only along the axes that shard `x`.
double sum_over_shards(const DTensor& x, double local) {
  std::vector<int> axes;
  for (int axis = 0; axis < x.mesh().ndim(); ++axis)
    if (is_shard(x.placements()[static_cast<std::size_t>(axis)])) axes.push_back(axis);
  const Tensor sum = Tensor::full({1}, local, DType::f64);
  all_reduce(x.mesh(), axes, ReduceOp::sum, sum, "gradcheck");
  return sum.item({0});
}

double inner_product(const DTensor& a, const DTensor& b) {
  Tensor product = Tensor::empty(a.local().shape(), DType::f64);
  multiply(a.local().to(DType::f64), b.local().to(DType::f64), product);
  double sum = 0;
  for (const double value : to_values(product)) sum += value;
  return sum_over_shards(a, sum);
}

bool is_parameter(const DTensor& x) {
  return std::all_of(x.placements().begin(), x.placements().end(), is_replicate);
}

// Local element with the given global row-major index, if this rank holds it.
std::optional<Tensor> element(const DTensor& x, std::int64_t index) {
  const GlobalBlock block = global_block(x.shape(), x.mesh(), x.placements());
  Tensor t = x.local();
  std::vector<std::int64_t> position(x.shape().size());
  for (std::size_t d = x.shape().size(); d-- > 0;) {
    position[d] = index % x.shape()[d] - block.offset[d];
    index /= x.shape()[d];
  }
  for (std::size_t d = 0; d < position.size(); ++d) {
    if (position[d] < 0 || position[d] >= t.size(0)) return std::nullopt;
    t = t.select(0, position[d]);
  }
  return t;
}

}  // namespace

GradcheckResult gradcheck(const std::function<std::vector<Var>(Tape&)>& function,
                          std::vector<Var> leaves, const GradcheckOptions& options) {
  for (Var& leaf : leaves) {
    leaf.zero_grad();
    if (leaf.value().dtype() != DType::f64)
      throw TypeError({.problem = "central differences need f64",
                       .operation = "gradcheck",
                       .tensor = leaf.name(),
                       .found = std::string(name_of(leaf.value().dtype())),
                       .expected = "f64"});
  }
  std::vector<DTensor> upstream;  // undefined for outputs without gradient
  {
    Tape tape;
    std::vector<Tape::Seed> seeds;
    for (const Var& y : function(tape)) {
      const RandomStream stream{options.seed, stream_id("gradcheck upstream") + upstream.size()};
      upstream.push_back(y.requires_grad()
                             ? uniform(y.value().shape(), DType::f64, y.value().mesh(),
                                       y.value().placements(), stream, -1, 1)
                             : DTensor());
      if (y.requires_grad()) seeds.push_back({y, upstream.back()});
    }
    tape.backward(seeds);
  }
  std::vector<Var> parameters;
  for (const Var& leaf : leaves)
    if (is_parameter(leaf.value())) parameters.push_back(leaf);
  reduce_gradients(leaves.at(0).value().mesh(), parameters);

  const NoGrad no_grad;
  auto loss = [&] {
    Tape tape;
    const std::vector<Var> outputs = function(tape);
    double sum = 0;
    for (std::size_t k = 0; k < outputs.size(); ++k)
      if (upstream[k].defined()) sum += inner_product(outputs[k].value(), upstream[k]);
    return sum;
  };
  GradcheckResult result;
  for (const Var& leaf : leaves) {
    const DTensor& x = leaf.value();
    const std::int64_t n = numel(x.shape());
    const auto samples = std::min<std::int64_t>(options.samples, n);
    const Tensor draws = Tensor::empty({samples}, DType::f64);
    fill_uniform(draws, {options.seed, stream_id("gradcheck " + leaf.name())}, whole({samples}), 0,
                 1);
    for (const double draw : to_values(draws)) {
      const auto index = std::min(n - 1, static_cast<std::int64_t>(draw * static_cast<double>(n)));
      const std::optional<Tensor> own = element(x, index);
      const double before = own ? own->item() : 0;
      const auto loss_at = [&](double value) {
        if (own) fill(*own, value);
        return loss();
      };
      const double h = options.step;
      const double near = loss_at(before + h) - loss_at(before - h);
      const double far = loss_at(before + 2 * h) - loss_at(before - 2 * h);
      if (own) fill(*own, before);
      const double numeric = (8 * near - far) / (12 * h);
      const std::optional<Tensor> slot = element(leaf.grad(), index);
      const double analytic = sum_over_shards(x, slot ? slot->item() : 0);
      const double error = std::abs(analytic - numeric) / std::max(1.0, std::abs(numeric));
      ++result.elements;
      if (error > result.max_error || result.worst.empty()) {
        result.max_error = std::max(error, result.max_error);
        result.worst = fmt::format("{}[{}]: analytic {:.12g}, numeric {:.12g}", leaf.name(), index,
                                   analytic, numeric);
      }
    }
  }
  return result;
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/harness/workload.hpp"

#include <algorithm>

#include "tessera/autodiff/gradients.hpp"
#include "tessera/runtime/memory.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/random.hpp"

namespace tessera::harness {

Workload::Workload(const Case& c, const Sizes& sizes, const DeviceMesh& mesh, DType dtype,
                   std::uint64_t seed)
    : name_(c.name), mesh_(mesh), setup_(random_setup(c, c.problem(sizes), mesh, dtype, seed)) {
  Tape tape;
  const std::vector<Var> outputs = setup_.instance.forward(inputs_on(tape, setup_));
  for (const Var& y : outputs)
    upstream_.push_back(y.requires_grad() ? setup_.upstream(y.value(), upstream_.size())
                                          : DTensor());
}

void Workload::forward() const {
  std::vector<Var> constants;
  for (const DTensor& x : setup_.inputs) constants.push_back(Var::constant(x));
  const NoGrad no_grad;
  setup_.instance.forward(constants);
}

void Workload::training(bool traced) const {
  run(traced);
}

std::int64_t Workload::run(bool traced) const {
  const trace::Recording recording(traced);
  const Scope scope(name_);
  Tape tape;
  std::vector<Tape::Seed> start;
  {
    const std::vector<Var> outputs = setup_.instance.forward(inputs_on(tape, setup_));
    for (std::size_t k = 0; k < outputs.size(); ++k)
      if (outputs[k].requires_grad()) start.push_back({outputs[k], upstream_[k]});
  }
  const std::int64_t saved = tape.saved_bytes();
  tape.backward(start);
  std::vector<Var> parameters = setup_.instance.module->parameters();
  reduce_gradients(mesh_, parameters);
  setup_.instance.module->zero_grad();
  return saved;
}

Workload::Usage Workload::usage() const {
  mesh_.clear_records();
  memory_ledger::reset_peak();
  const std::int64_t before = memory_ledger::total().live;
  const std::int64_t saved = run(false);
  const std::int64_t peak = memory_ledger::total().peak - before;
  std::int64_t messages = 0, bytes = 0;
  for (const CommRecord& r : mesh_.records()) {
    messages += r.messages;
    bytes += r.bytes;
  }
  const std::vector<double> most =
      over_ranks(ReduceOp::max, {static_cast<double>(peak), static_cast<double>(saved),
                                 static_cast<double>(messages), static_cast<double>(bytes)});
  const auto at = [&](std::size_t k) { return static_cast<std::int64_t>(most[k]); };
  return {at(0), at(1), at(2), at(3)};
}

Flops Workload::flops() const {
  const std::int64_t start = product_flops();
  forward();
  const std::int64_t middle = product_flops();
  run(false);
  const std::vector<double> sums = over_ranks(
      ReduceOp::sum,
      {static_cast<double>(middle - start), static_cast<double>(product_flops() - middle)});
  return {sums[0], sums[1]};
}

Traffic Workload::traffic() const {
  std::int64_t values = 0, differentiable = 0;
  const auto count = [&](const DTensor& x, bool has_gradient) {
    values += x.local().bytes();
    if (has_gradient) differentiable += x.local().bytes();
  };
  for (std::size_t k = 0; k < setup_.inputs.size(); ++k)
    count(setup_.inputs[k], setup_.specs[k].differentiable);
  for (const Var& p : setup_.instance.module->parameters()) count(p.value(), true);
  for (const DTensor& gradient : upstream_)
    if (gradient.defined()) count(gradient, true);
  const std::int64_t saved = run(false);
  const std::vector<double> sums = over_ranks(
      ReduceOp::sum,
      {static_cast<double>(values), static_cast<double>(values + differentiable + 2 * saved)});
  return {sums[0], sums[1]};
}

std::vector<double> Workload::over_ranks(ReduceOp op, const std::vector<double>& values) const {
  const Tensor t =
      Tensor::from_values({static_cast<std::int64_t>(values.size())}, values, DType::f64);
  for (int axis = 0; axis < mesh_.ndim(); ++axis) all_reduce(mesh_, axis, op, t, "usage");
  return to_values(t);
}

Yardstick::Yardstick(const DeviceMesh& mesh, std::int64_t n, std::int64_t copied, DType dtype,
                     std::uint64_t seed)
    : mesh_(mesh), n_(n) {
  const std::int64_t elements = copied / static_cast<std::int64_t>(size_of(DType::f32));
  for (Tensor* t : {&from_, &to_}) *t = Tensor::zeros({elements}, DType::f32, mesh.device());
  for (Tensor* t : {&a_, &b_, &c_}) *t = Tensor::empty({n, n}, dtype, mesh.device());
  fill_uniform(a_, {seed, stream_id("a")}, whole({n, n}), -1, 1);
  fill_uniform(b_, {seed, stream_id("b")}, whole({n, n}), -1, 1);
}

double Yardstick::copy_rate() const {
  const double seconds = seconds_of(mesh_, [&] { copy(from_, to_); });
  return 2 * static_cast<double>(from_.bytes()) / seconds;
}

double Yardstick::product_rate() const {
  const double seconds = seconds_of(mesh_, [&] { gemm(1, a_, b_, 0, c_); });
  const auto n = static_cast<double>(n_);
  return 2 * n * n * n / seconds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace tessera::harness

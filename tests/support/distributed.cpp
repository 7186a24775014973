// SPDX-License-Identifier: MIT
#include "support/distributed.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "support/catch.hpp"
#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/random.hpp"

namespace tessera {
namespace {

struct Result {
  std::vector<DTensor> outputs;
  std::vector<DTensor> gradients;  // of the differentiable operands; undefined if none arrived
};

Tensor wide(const Tensor& t) {
  return t.to(DType::f64).contiguous();
}

std::vector<MessageCount> promised_by(const Tape& tape) {
  std::vector<MessageCount> all;
  for (const BoundContract& b : tape.contracts())
    for (const MessageCount& m : message_counts(b)) all.push_back(m);
  return all;
}

void check_contracts(const std::vector<MessageCount>& promised,
                     const std::vector<CommRecord>& forward,
                     const std::vector<CommRecord>& backward) {
  std::vector<MessageCount> done = message_counts(Pass::forward, forward);
  for (const MessageCount& m : message_counts(Pass::backward, backward)) done.push_back(m);
  for (const std::string& difference : compare_messages(promised, done)) FAIL_CHECK(difference);
}

void check_saved(const Tape& tape) {
  std::vector<SavedCount> promised;
  for (const BoundContract& b : tape.contracts())
    for (const SavedCount& s : saved_counts(b)) promised.push_back(s);
  for (const std::string& difference : compare_saved(promised, tape.saved()))
    FAIL_CHECK(difference);
  for (const SavedRecord& record : tape.saved()) CHECK(record.within());
}

enum class Layout { row_major, reversed };

// The same tensor, perhaps with its dims in reverse order in memory.
DTensor laid_out(const DTensor& x, Layout layout) {
  if (layout == Layout::row_major) return x;
  std::vector<int> dims;
  for (int d = x.ndim(); d-- > 0;) dims.push_back(d);
  const Shape shape(x.shape().rbegin(), x.shape().rend());
  const Strides strides = row_major_strides(shape);
  return DTensor::from_local(x.local().permute(dims).clone().permute(dims), x.mesh(),
                             x.placements(), x.shape(), {strides.rbegin(), strides.rend()});
}

Result run(const DeviceMesh& mesh, const Operation& operation, const std::vector<Operand>& operands,
           Layout layout = Layout::row_major) {
  mesh.clear_records();
  Tape tape;
  std::vector<Var> inputs;
  std::vector<std::uint64_t> before;
  for (const Operand& o : operands) {
    const bool flat = std::ssize(o.placements) < mesh.ndim();
    const DTensor x =
        laid_out(distribute(o.full, flat ? mesh.flatten_cp() : mesh, o.placements), layout);
    before.push_back(hash_of(x.local()));
    inputs.push_back(tape.input(fmt::format("operand {}", inputs.size()), x, o.differentiable));
  }
  const std::vector<Var> outputs = operation(inputs);
  const std::vector<CommRecord> forward = mesh.records();
  const std::vector<MessageCount> promised = promised_by(tape);
  check_saved(tape);
  Result result;
  std::vector<Tape::Seed> seeds;
  for (const Var& y : outputs) {
    const std::uint64_t stream = stream_id("upstream") + result.outputs.size();
    result.outputs.push_back(y.value());
    if (y.requires_grad())
      seeds.push_back({y, laid_out(uniform(y.value().shape(), y.value().dtype(), y.value().mesh(),
                                           y.value().placements(), {3, stream}, -1, 1),
                                   layout)});
  }
  mesh.clear_records();
  tape.backward(seeds);
  if (!seeds.empty()) check_contracts(promised, forward, mesh.records());
  for (std::size_t k = 0; k < operands.size(); ++k) {
    CHECK(hash_of(inputs[k].value().local()) == before[k]);
    if (!operands[k].differentiable) continue;
    result.gradients.push_back(inputs[k].has_grad() ? inputs[k].grad() : DTensor());
    if (inputs[k].has_grad()) CHECK(result.gradients.back().placements() == operands[k].placements);
  }
  return result;
}

void check_replicas(const DTensor& x) {
  std::vector<int> axes;
  for (int axis = 0; axis < x.mesh().ndim(); ++axis)
    if (is_replicate(x.placements()[static_cast<std::size_t>(axis)])) axes.push_back(axis);
  CHECK(replicas_identical(x.mesh(), axes, x.local().contiguous()));
}

// What a fresh distribution of the full result would be.
void check_metadata(const DTensor& found, const DTensor& serial) {
  CHECK(found.shape() == serial.shape());
  CHECK(found.strides() == serial.strides());
  CHECK(found.dtype() == serial.dtype());
  const DTensor fresh = distribute(serial.local(), found.mesh(), found.placements());
  CHECK(found.local().shape() == fresh.local().shape());
}

void check_equal(const DTensor& found, const DTensor& serial, double tolerance) {
  REQUIRE(found.defined() == serial.defined());
  if (!found.defined()) return;
  check_metadata(found, serial);
  check_replicas(found);
  const Tensor full = wide(full_tensor(found));
  const Difference d = max_difference(full, wide(serial.local()));
  CHECK(d.max_abs <= tolerance * d.max_reference);
}

}  // namespace

void check_against_serial(const DeviceMesh& mesh, const Operation& operation,
                          const std::vector<Operand>& operands, double tolerance) {
  // One rank, seen with as many axes.
  const DeviceMesh one = DeviceMesh::serial();
  const Result serial =
      run(mesh.ndim() == one.ndim() ? one : one.flatten_cp(), operation, operands);
  const Result found = run(mesh, operation, operands);
  REQUIRE(found.outputs.size() == serial.outputs.size());
  for (std::size_t k = 0; k < found.outputs.size(); ++k) {
    INFO("output " << k << " " << found.outputs[k].describe());
    check_equal(found.outputs[k], serial.outputs[k], tolerance);
  }
  for (std::size_t k = 0; k < found.gradients.size(); ++k) {
    INFO("gradient of differentiable operand " << k);
    check_equal(found.gradients[k], serial.gradients[k], tolerance);
  }
}

void check_any_layout(const Operation& operation, const std::vector<Operand>& operands,
                      double tolerance) {
  const Result expected = run(DeviceMesh::serial(), operation, operands);
  const Result found = run(DeviceMesh::serial(), operation, operands, Layout::reversed);
  const auto check = [&](const std::vector<DTensor>& a, const std::vector<DTensor>& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t k = 0; k < a.size(); ++k) {
      REQUIRE(a[k].defined() == b[k].defined());
      if (!a[k].defined()) continue;
      CHECK(a[k].shape() == b[k].shape());
      const Difference d = max_difference(wide(a[k].local()), wide(b[k].local()));
      CHECK(d.max_abs <= tolerance * d.max_reference);
    }
  };
  check(found.outputs, expected.outputs);
  check(found.gradients, expected.gradients);
}

double Draw::uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
}

Placements Draw::placements(const DeviceMesh& mesh, int ndim, const std::vector<int>& whole) {
  std::vector<int> free;
  for (int d = 0; d < ndim; ++d)
    if (std::find(whole.begin(), whole.end(), d) == whole.end()) free.push_back(d);
  Placements result;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const int choice = below(static_cast<int>(free.size()) + 1);
    if (choice == static_cast<int>(free.size())) {
      result.push_back(Replicate{});
      continue;
    }
    result.push_back(Shard{free[static_cast<std::size_t>(choice)]});
    free.erase(free.begin() + choice);
  }
  return result;
}

Shape Draw::shape(const DeviceMesh& mesh, const Placements& placements, int ndim) {
  Shape shape;
  for (int d = 0; d < ndim; ++d) {
    std::int64_t size = 1 + below(3);
    for (std::size_t axis = 0; axis < placements.size(); ++axis)
      if (is_shard(placements[axis], d)) size *= mesh.size(static_cast<int>(axis));
    shape.push_back(size);
  }
  return shape;
}

Tensor Draw::values(const Shape& shape, double low, double high, DType dtype) {
  std::vector<double> values;
  for (std::int64_t k = 0; k < numel(shape); ++k) values.push_back(uniform(low, high));
  return Tensor::from_values(shape, values, dtype);
}

Tensor Draw::integers(const Shape& shape, int low, int high) {
  std::vector<double> values;
  for (std::int64_t k = 0; k < numel(shape); ++k)
    values.push_back(static_cast<double>(low + below(high - low)));
  return Tensor::from_values(shape, values, DType::i64);
}

Tensor Draw::booleans(const Shape& shape) {
  return integers(shape, 0, 2).to(DType::boolean);
}

std::vector<Placements> every_placement(int ndim) {
  std::vector<Placement> one{Replicate{}, Partial{}};
  for (int d = 0; d < ndim; ++d) one.push_back(Shard{d});
  std::vector<Placements> all;
  for (const Placement& a : one)
    for (const Placement& b : one)
      for (const Placement& c : one) {
        const auto same_dim = [](const Placement& p, const Placement& q) {
          return is_shard(p) && p == q;
        };
        if (!same_dim(a, b) && !same_dim(a, c) && !same_dim(b, c)) all.push_back({a, b, c});
      }
  return all;
}

bool has_partial(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), is_partial);
}

bool shards(const Placements& placements, int dim) {
  return std::any_of(placements.begin(), placements.end(),
                     [dim](const Placement& p) { return is_shard(p, dim); });
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
#include "tessera/mesh/dtensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tessera/mesh/collectives.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/ops.hpp"

namespace tessera {
namespace {

// Dims from the fastest to the slowest; of equal strides, the smaller size first, so that size-1
// dims come before the dim they tie with.
std::vector<std::size_t> by_stride(const Shape& shape, const Strides& strides) {
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(strides[a], shape[a]) < std::pair(strides[b], shape[b]);
  });
  return order;
}

[[noreturn]] void refuse_strides(const char* operation, std::string problem, const Shape& shape,
                                 const Strides& strides, std::string expected) {
  throw StrideError(
      {.problem = std::move(problem),
       .operation = operation,
       .found = "shape " + format_shape(shape) + " with strides " + format_shape(strides),
       .expected = std::move(expected)});
}

Strides strides_in_order(const std::vector<std::size_t>& order, const Shape& shape) {
  Strides strides(shape.size());
  std::int64_t next = 1;
  for (const std::size_t d : order) {
    strides[d] = next;
    next *= shape[d];
  }
  return strides;
}

// The same strides, those of size-1 dims made what the order of dims gives them.
Strides normalized(const char* operation, const Shape& shape, const Strides& strides) {
  if (strides.size() != shape.size())
    refuse_strides(operation, "one stride per dim is needed", shape, strides,
                   fmt::format("{} strides", shape.size()));
  for (const std::int64_t stride : strides)
    if (stride <= 0)
      refuse_strides(operation, "strides must be positive", shape, strides,
                     "an expanded view made contiguous first");
  Strides exact = strides_in_order(by_stride(shape, strides), shape);
  for (std::size_t d = 0; d < shape.size(); ++d)
    if (shape[d] != 1 && strides[d] != exact[d])
      refuse_strides(operation, "strides must be unique and exhaustive", shape, strides,
                     "for this order of dims " + format_shape(exact));
  return exact;
}

// Dims of more than one local element must lie in memory in the order of the global strides.
void check_order(const char* operation, const Tensor& local, const Strides& strides) {
  for (std::size_t a = 0; a < strides.size(); ++a)
    for (std::size_t b = 0; b < strides.size(); ++b) {
      if (local.shape()[a] == 1 || local.shape()[b] == 1 || strides[a] >= strides[b]) continue;
      if (local.strides()[a] <= 0 || local.strides()[a] >= local.strides()[b])
        refuse_strides(operation, "the local block lies in memory in another order of dims",
                       local.shape(), local.strides(), "the order of " + format_shape(strides));
    }
}

void check_sizes(const char* operation, const Shape& shape) {
  for (const std::int64_t size : shape)
    if (size < 1)
      throw ShapeError({.problem = "a distributed tensor has no dim of size zero",
                        .operation = operation,
                        .found = format_shape(shape)});
}

std::vector<Interval> own_block(const char* operation, const Shape& shape, const DeviceMesh& mesh,
                                const Placements& placements) {
  check_sizes(operation, shape);
  return block_of(shape, placements, mesh.shape(), mesh.coordinate(), operation);
}

void refuse_partial(const char* operation, const Placements& placements) {
  if (std::any_of(placements.begin(), placements.end(), is_partial))
    throw PlacementError({.problem = "only reductions make Partial tensors",
                          .operation = operation,
                          .found = format(placements),
                          .expected = "S(d) and R"});
}

DTensor wrap_local(Tensor local, const DeviceMesh& mesh, const Placements& placements,
                   const Shape& shape) {
  return DTensor::from_local(std::move(local), mesh, placements, shape, row_major_strides(shape));
}

}  // namespace

DTensor DTensor::from_local(Tensor local, DeviceMesh mesh, Placements placements, Shape shape,
                            Strides strides) {
  constexpr const char* kName = "from_local";
  if (!local.defined()) throw TypeError({.problem = "no local tensor", .operation = kName});
  if (!mesh.defined()) throw MeshError({.problem = "no mesh", .operation = kName});
  const Shape expected = shape_of(own_block(kName, shape, mesh, placements));
  if (local.shape() != expected)
    throw ShapeError(
        {.problem = "the local shape is not the block of the global shape",
         .operation = kName,
         .found = fmt::format("local {} of global {} {} on {}", format_shape(local.shape()),
                              format_shape(shape), format(placements), mesh.describe()),
         .expected = format_shape(expected)});
  strides = normalized(kName, shape, strides);
  check_order(kName, local, strides);
  if (local.device() != mesh.device())
    throw DeviceError({.problem = "the local tensor is not on the device of the mesh",
                       .operation = kName,
                       .found = name_of(local.device()),
                       .expected = name_of(mesh.device())});
  DTensor x;
  x.local_ = std::move(local);
  x.mesh_ = std::move(mesh);
  x.placements_ = std::move(placements);
  x.shape_ = std::move(shape);
  x.strides_ = std::move(strides);
  return x;
}

std::int64_t DTensor::size(int dim) const {
  return shape_[static_cast<std::size_t>(normalize_dim(dim, ndim(), "DTensor::size"))];
}

DTensor DTensor::with_local(Tensor local) const {
  return from_local(std::move(local), mesh_, placements_, shape_, strides_);
}

DTensor DTensor::to(DType dtype) const {
  if (this->dtype() == dtype) return *this;
  DTensor y = empty_like(*this, dtype);
  copy(local_, y.local());
  return y;
}

std::string DTensor::describe() const {
  if (!defined()) return "an undefined tensor";
  return fmt::format("{} {} {} local {}", name_of(dtype()), format_shape(shape_),
                     format(placements_), format_shape(local_.shape()));
}

GlobalBlock global_block(const Shape& shape, const DeviceMesh& mesh, const Placements& placements) {
  GlobalBlock block{shape, {}};
  for (const Interval& interval : own_block("global_block", shape, mesh, placements))
    block.offset.push_back(interval.begin);
  return block;
}

DTensor distribute(const Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  if (!full.defined()) throw TypeError({.problem = "no tensor", .operation = "distribute"});
  refuse_partial("distribute", placements);
  const std::vector<Interval> block = own_block("distribute", full.shape(), mesh, placements);
  Tensor slice = full;
  for (int d = 0; d < full.ndim(); ++d) {
    const Interval own = block[static_cast<std::size_t>(d)];
    slice = slice.narrow(d, own.begin, own.size());
  }
  // Always a copy: the distributed tensor owns its block.
  const Tensor local = slice.device() == mesh.device() ? slice.clone() : slice.to(mesh.device());
  return wrap_local(local, mesh, placements, full.shape());
}

DTensor empty(const Shape& shape, DType dtype, const DeviceMesh& mesh,
              const Placements& placements) {
  const Shape local = shape_of(own_block("empty", shape, mesh, placements));
  return wrap_local(Tensor::empty(local, dtype, mesh.device()), mesh, placements, shape);
}

DTensor zeros(const Shape& shape, DType dtype, const DeviceMesh& mesh,
              const Placements& placements) {
  const Shape local = shape_of(own_block("zeros", shape, mesh, placements));
  return wrap_local(Tensor::zeros(local, dtype, mesh.device()), mesh, placements, shape);
}

DTensor empty_like(const DTensor& x, DType dtype) {
  return empty_carried(x, x.shape(), x.placements(), dtype);
}

DTensor empty_carried(const DTensor& x, const Shape& shape, const Placements& placements,
                      DType dtype) {
  const Shape local = shape_of(own_block("empty_carried", shape, x.mesh(), placements));
  const Tensor block = Tensor::empty({numel(local)}, dtype, x.mesh().device());
  return DTensor::from_local(
      block.as_strided(local, carry_strides(x.shape(), x.strides(), local), 0), x.mesh(),
      placements, shape, carry_strides(x.shape(), x.strides(), shape));
}

DTensor uniform(const Shape& shape, DType dtype, const DeviceMesh& mesh,
                const Placements& placements, RandomStream stream, double low, double high) {
  refuse_partial("uniform", placements);
  const DTensor x = empty(shape, dtype, mesh, placements);
  fill_uniform(x.local(), stream, global_block(shape, mesh, placements), low, high);
  return x;
}

DTensor normal(const Shape& shape, DType dtype, const DeviceMesh& mesh,
               const Placements& placements, RandomStream stream) {
  refuse_partial("normal", placements);
  const DTensor x = empty(shape, dtype, mesh, placements);
  fill_normal(x.local(), stream, global_block(shape, mesh, placements));
  return x;
}

DTensor bernoulli(const Shape& shape, DType dtype, const DeviceMesh& mesh,
                  const Placements& placements, RandomStream stream, double p) {
  refuse_partial("bernoulli", placements);
  const DTensor x = empty(shape, dtype, mesh, placements);
  fill_bernoulli(x.local(), stream, global_block(shape, mesh, placements), p);
  return x;
}

Strides carry_strides(const Shape& old_shape, const Strides& old_strides, const Shape& new_shape) {
  constexpr const char* kName = "carry_strides";
  const Strides exact = normalized(kName, old_shape, old_strides);
  if (new_shape.size() != old_shape.size())
    throw ShapeError({.problem = "old and new shape differ in the number of dims",
                      .operation = kName,
                      .found = format_shape(new_shape),
                      .expected = fmt::format("{} dims", old_shape.size())});
  return strides_in_order(by_stride(old_shape, exact), new_shape);
}

void expect(const DTensor& x, const char* operation, const char* tensor, const Expect& expected) {
  const auto facts = [&](std::string problem, std::string wanted) {
    return ErrorFacts{.problem = std::move(problem),
                      .operation = operation,
                      .tensor = tensor,
                      .found = x.describe() + (x.defined() ? " on " + x.mesh().describe() : ""),
                      .expected = std::move(wanted)};
  };
  if (!x.defined()) throw TypeError(facts("a distributed tensor is needed", "a defined tensor"));
  if (expected.ndim >= 0 && x.ndim() != expected.ndim)
    throw ShapeError(facts("wrong number of dims", fmt::format("{} dims", expected.ndim)));
  if (expected.shape && x.shape() != *expected.shape)
    throw ShapeError(facts("wrong shape", format_shape(*expected.shape)));
  if (expected.mesh && x.mesh() != *expected.mesh)
    throw MeshError(facts("wrong mesh", expected.mesh->describe() + " of the other operands"));
  if (expected.placements && x.placements() != *expected.placements)
    throw PlacementError(facts("wrong placements", format(*expected.placements)));
  const bool partial = std::any_of(x.placements().begin(), x.placements().end(), is_partial);
  if (partial && !expected.allow_partial)
    throw PartialError(facts("a Partial tensor must be reduced first", "S(d) and R"));
}

}  // namespace tessera

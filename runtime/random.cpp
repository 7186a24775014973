// SPDX-License-Identifier: MIT
// Drawn on the host for every device, so that a CPU and a GPU see the same numbers.
#include "tessera/runtime/random.hpp"

#include <Random123/philox.h>
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "tessera/runtime/check.hpp"
#include "tessera/runtime/error.hpp"
#include "tessera/runtime/hash.hpp"
#include "tessera/runtime/kernels/scalar.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/stream.hpp"

namespace tessera {
namespace {

struct Draw {  // two words for each global index
  std::uint64_t first;
  std::uint64_t second;
};

Draw draw(RandomStream stream, std::uint64_t index) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const philox4x32_ctr_t counter{
      {low(index), high(index), low(stream.stream), high(stream.stream)}};
  const philox4x32_key_t key{{low(stream.seed), high(stream.seed)}};
  const philox4x32_ctr_t r = philox4x32_R(10, counter, key);
  const auto join = [](std::uint32_t l, std::uint32_t h) {
    return (static_cast<std::uint64_t>(h) << 32) | l;
  };
  return {join(r.v[0], r.v[1]), join(r.v[2], r.v[3])};
}

double unit(std::uint64_t word) {  // [0, 1), a multiple of 2^-52
  return static_cast<double>(word >> 12) * 0x1p-52;
}

void check_block(const char* operation, const Tensor& local, const GlobalBlock& block) {
  check::same_device(operation, {{"local", local}});
  const std::size_t ndim = local.shape().size();
  bool inside = block.shape.size() == ndim && block.offset.size() == ndim;
  for (std::size_t d = 0; inside && d < ndim; ++d)
    inside = block.offset[d] >= 0 && block.offset[d] + local.shape()[d] <= block.shape[d];
  if (!inside)
    throw ShapeError({.problem = "the local tensor is no block of the global one",
                      .operation = operation,
                      .tensor = "local",
                      .found = format_shape(local.shape()) + " at " + format_shape(block.offset),
                      .expected = "within " + format_shape(block.shape)});
}

template <class T, class Value>
void fill_rows(const Tensor& local, const GlobalBlock& block, const Value& value,
               std::int64_t first_row, std::int64_t last_row) {
  const auto& shape = local.shape();
  const std::size_t ndim = shape.size();
  const std::int64_t width = ndim == 0 ? 1 : shape.back();
  const std::int64_t stride = ndim == 0 ? 1 : local.strides().back();
  const Strides global = row_major_strides(block.shape);
  for (std::int64_t row = first_row; row < last_row; ++row) {
    std::int64_t at = 0;
    std::int64_t index = ndim == 0 ? 0 : block.offset.back();
    std::int64_t rest = row;
    for (std::size_t d = ndim < 2 ? 0 : ndim - 1; d-- > 0;) {
      const std::int64_t i = rest % shape[d];
      rest /= shape[d];
      at += i * local.strides()[d];
      index += (block.offset[d] + i) * global[d];
    }
    T* out = static_cast<T*>(local.data()) + at;
    for (std::int64_t i = 0; i < width; ++i)
      out[i * stride] = kernels_portable::convert<T>(value(static_cast<std::uint64_t>(index + i)));
  }
}

// local[...] = value(global index), where value is a double.
template <class Value>
void fill_by_index(const Tensor& local, const GlobalBlock& block, const Value& value) {
  if (local.numel() == 0) return;
  if (local.device().kind == DeviceKind::meta) return;
  if (is_gpu(local.device())) {
    const Tensor host = staging(local.shape(), local.dtype(), local.device());
    fill_by_index(host, block, value);
    return copy(local.is_contiguous() ? host : host.to(local.device()), local);
  }
  local.bump_version();
  const std::int64_t width = local.ndim() == 0 ? 1 : local.size(-1);
  run_lanes(cpu_device, local.numel() / width, 1 + 4096 / width,
            [&](std::int64_t begin, std::int64_t end, int) {
              kernels_portable::with_any(local.dtype(), [&](auto type) {
                fill_rows<typename decltype(type)::type>(local, block, value, begin, end);
              });
            });
}

}  // namespace

std::uint64_t stream_id(std::string_view name) {
  return hash_bytes(name);
}

GlobalBlock whole(const Shape& shape) {
  return {shape, std::vector<std::int64_t>(shape.size(), 0)};
}

void fill_uniform(const Tensor& local, RandomStream stream, const GlobalBlock& block, double low,
                  double high) {
  check_block("fill_uniform", local, block);
  check::floating("fill_uniform", {{"local", local}});
  const double last = std::nextafter(high, low);  // rounding must not reach `high`
  fill_by_index(local, block, [=](std::uint64_t index) {
    const double value = low + (high - low) * unit(draw(stream, index).first);
    return value < high ? value : last;
  });
}

void fill_normal(const Tensor& local, RandomStream stream, const GlobalBlock& block) {
  check_block("fill_normal", local, block);
  check::floating("fill_normal", {{"local", local}});
  fill_by_index(local, block, [=](std::uint64_t index) {
    const Draw words = draw(stream, index);
    const double radius = std::sqrt(-2 * std::log(1 - unit(words.first)));  // 1 - u is not 0
    return radius * std::cos(2 * std::numbers::pi * unit(words.second));
  });
}

void fill_bernoulli(const Tensor& local, RandomStream stream, const GlobalBlock& block, double p) {
  check_block("fill_bernoulli", local, block);
  if (!(p >= 0 && p <= 1))
    throw RangeError({.problem = "not a probability",
                      .operation = "fill_bernoulli",
                      .found = fmt::format("{}", p),
                      .expected = "0..1"});
  fill_by_index(local, block, [=](std::uint64_t index) {
    return unit(draw(stream, index).first) < p ? 1.0 : 0.0;
  });
}

}  // namespace tessera

// SPDX-License-Identifier: MIT
// ranks: 1
// The kernels of a GPU against the CPU's. Where the imitation does the same arithmetic in the same
// order results are equal bit by bit; sums that are formed in another order differ by the bound of
// their roundings.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "gpu/device.hpp"
#include "support/gpu.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"

namespace tessera {
namespace {

const std::vector<DType> all_dtypes{DType::f64, DType::f32, DType::bf16,
                                    DType::i64, DType::i32, DType::boolean};
const std::vector<std::int64_t> ragged{0, 1, 31, 32, 33, 255, 257, 1000};

// The CPU's kernels of its oldest instruction set: like the imitation's, they fuse no products.
class PlainCpu {
 public:
  PlainCpu() : before_(cpu_variant().short_name) {
    force_cpu_variant(cpu_variants().front().short_name);
  }
  ~PlainCpu() { force_cpu_variant(before_); }
  PlainCpu(const PlainCpu&) = delete;
  PlainCpu& operator=(const PlainCpu&) = delete;

 private:
  std::string before_;
};

// Those that the device's kernels are compiled for; CUDA's for 256 threads at most.
std::vector<int> sizes_of_blocks() {
  std::vector<int> sizes = block_sizes;
  if (test_device() != imitation) std::erase_if(sizes, [](int threads) { return threads > 256; });
  return sizes;
}

using Tensors = std::vector<Tensor>;
using Op = std::function<void(const Tensors&)>;

// The tensors after `op` has run on them.
Tensors after(const Op& op, const Tensors& operands, Device device) {
  Tensors own, back;
  for (const Tensor& x : operands) own.push_back(device == cpu_device ? x.clone() : x.to(device));
  op(own);
  for (const Tensor& x : own) back.push_back(x.to(cpu_device));
  return back;
}

// The largest difference of each operand between the CPU and the device; 0: equal bit by bit. All
// of each is compared, so that nothing beside a view may change.
std::vector<double> differences(const Tensors& operands, const Op& op) {
  const PlainCpu plain;
  const Tensors expected = after(op, operands, cpu_device);
  const Tensors found = after(op, operands, test_device());
  std::vector<double> result;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    double worst = 0;
    if (!bitwise_equal(expected[i], found[i])) {
      worst = std::numeric_limits<double>::denorm_min();
      const auto a = to_values(expected[i]), b = to_values(found[i]);
      for (std::size_t k = 0; k < a.size(); ++k) {
        const double difference = std::abs(a[k] - b[k]);
        worst = difference <= worst ? worst : difference;  // a NaN is kept
      }
    }
    result.push_back(worst);
  }
  return result;
}
// How far a number of at most 1 may be from the CPU's: on the imitation not at all; a GPU fuses
// products and sums and rounds exp, log and the like in its own way.
double off_by(DType dtype) {
  if (test_device() == imitation) return 0;
  return rounding_of(dtype) * (dtype == DType::bf16 ? 2 : 16);
}

// Bit by bit on the imitation, but for the sign of a NaN, which is the compiler's choice; on a GPU
// each floating number may be off by a few units in the last place.
bool same_numbers(const Tensor& expected, const Tensor& found) {
  if (bitwise_equal(expected, found)) return true;
  if (!is_floating(expected.dtype())) return false;
  const bool exact = test_device() == imitation;
  const double unit = off_by(expected.dtype());
  const auto a = to_values(expected), b = to_values(found);
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (std::isnan(a[k]) && std::isnan(b[k])) continue;
    const bool same =
        exact ? a[k] == b[k] && std::signbit(a[k]) == std::signbit(b[k])
              : a[k] == b[k] || std::abs(a[k] - b[k]) <= unit * std::max(1.0, std::abs(a[k]));
    if (!same) return false;
  }
  return true;
}
bool equal_on_both(const Tensors& operands, const Op& op) {
  const PlainCpu plain;
  const Tensors expected = after(op, operands, cpu_device);
  const Tensors found = after(op, operands, test_device());
  for (std::size_t i = 0; i < operands.size(); ++i)
    if (!same_numbers(expected[i], found[i])) return false;
  return true;
}

// Uniform in [-3, 3), with the values in between that are special to some operation. To integers
// infinities are not: they would be extremes, which overflow.
Tensor mixed_numbers(const Shape& shape, DType dtype, std::string_view name) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Tensor t = random_tensor(shape, DType::f64, name);
  scale(3, t);
  const double largest = is_floating(dtype) ? infinity : 3;
  const std::vector<double> special{
      0.0, -0.0, 1.0, -2.0, 0.5, largest, -largest, std::numeric_limits<double>::quiet_NaN()};
  for (std::size_t i = 0; i < special.size(); ++i)
    for (std::int64_t at = static_cast<std::int64_t>(i) * 3 + 2; at < t.numel(); at += 41)
      t.host_data<double>()[at] = special[i];
  return t.to(dtype);
}
// Whole numbers in [-50, 50): sums of them are exact in any order, and ties are frequent.
Tensor whole_numbers(const Shape& shape, DType dtype, std::string_view name) {
  const Tensor t = random_tensor(shape, DType::f64, name);
  for (std::int64_t i = 0; i < t.numel(); ++i)
    t.host_data<double>()[i] = std::floor(t.host_data<double>()[i] * 50);
  return t.to(dtype);
}

// A view of `base` with its dims reversed and room on each side, whose shape is `shape`.
Shape room_for(const Shape& shape) {
  Shape room;
  for (std::size_t d = shape.size(); d-- > 0;) room.push_back(shape[d] + 3);
  return room;
}
Tensor inside(const Tensor& base) {
  std::vector<int> reversed;
  for (int d = base.ndim(); d-- > 0;) reversed.push_back(d);
  Tensor view = base.permute(reversed);
  for (int d = 0; d < view.ndim(); ++d) view = view.narrow(d, 1, view.size(d) - 3);
  return view;
}

std::vector<Shape> elementwise_shapes() {
  std::vector<Shape> shapes{{}, {3, 5}, {2, 3, 4, 5}, {33, 65}};
  for (const std::int64_t n : ragged) shapes.push_back({n});
  return shapes;
}

// op(a, b, out) on contiguous operands, and on views that no dims of can be merged.
void check_elementwise(DType dtype, DType out_dtype,
                       const std::function<void(const Tensor&, const Tensor&, const Tensor&)>& op) {
  for (const Shape& shape : elementwise_shapes()) {
    CAPTURE(format_shape(shape));
    CHECK(equal_on_both({mixed_numbers(shape, dtype, "a"), mixed_numbers(shape, dtype, "b"),
                         Tensor::zeros(shape, out_dtype)},
                        [&](const Tensors& t) { op(t[0], t[1], t[2]); }));
    const Shape room = room_for(shape);
    CHECK(equal_on_both({mixed_numbers(room, dtype, "a"), mixed_numbers(shape, dtype, "b"),
                         Tensor::zeros(room, out_dtype)},
                        [&](const Tensors& t) { op(inside(t[0]), t[1], inside(t[2])); }));
  }
}

TEST_CASE("elementwise operations of one operand") {
  for (const DType dtype : all_dtypes)
    for (int op = 0; op <= static_cast<int>(Unary::step); ++op) {
      CAPTURE(name_of(dtype), op);
      check_elementwise(dtype, dtype, [&](const Tensor& a, const Tensor&, const Tensor& out) {
        unary(static_cast<Unary>(op), a, out);
      });
    }
}

TEST_CASE("elementwise operations of two operands and more") {
  for (const DType dtype : all_dtypes) {
    for (int op = 0; op <= static_cast<int>(Binary::bit_and); ++op) {
      if (static_cast<Binary>(op) == Binary::bit_and && is_floating(dtype)) continue;
      CAPTURE(name_of(dtype), op);
      check_elementwise(dtype, dtype, [&](const Tensor& a, const Tensor& b, const Tensor& out) {
        binary(static_cast<Binary>(op), a, b, out);
      });
    }
    check_elementwise(dtype, dtype, [](const Tensor& a, const Tensor& b, const Tensor& out) {
      select(a, b, a, out);
    });
    check_elementwise(dtype, DType::f32, [](const Tensor& a, const Tensor& b, const Tensor& out) {
      binary(Binary::multiply, 1.5, a, out);
      binary(Binary::less, a, b, out);
    });
  }
  for (const DType dtype : floating_dtypes) {
    CAPTURE(name_of(dtype));
    check_elementwise(dtype, dtype, [](const Tensor& a, const Tensor& b, const Tensor& out) {
      add(0.7, a, -1.3, b, out);
      scale(1.1, out);
    });
  }
}

TEST_CASE("copies between all dtypes, transposes and fills") {
  for (const DType from : all_dtypes)
    for (const DType to : all_dtypes) {
      CAPTURE(name_of(from), name_of(to));
      check_elementwise(from, to,
                        [](const Tensor& a, const Tensor&, const Tensor& out) { copy(a, out); });
    }
  for (const DType dtype : all_dtypes) {
    CAPTURE(name_of(dtype));
    check_elementwise(dtype, dtype,
                      [](const Tensor&, const Tensor&, const Tensor& out) { fill(out, 2.6); });
    for (const int threads : sizes_of_blocks())
      for (const Shape& shape :
           {Shape{1, 40}, {31, 1}, {32, 32}, {33, 65}, {3, 31, 100}, {2, 3, 64, 7}}) {
        const BlockThreads forced(threads, test_device());
        CAPTURE(threads, format_shape(shape));
        const Shape turned = shape.size() == 2   ? Shape{shape[1], shape[0]}
                             : shape.size() == 3 ? Shape{shape[0], shape[2], shape[1]}
                                                 : Shape{shape[0], shape[1], shape[3], shape[2]};
        CHECK(equal_on_both({mixed_numbers(shape, dtype, "x"), Tensor::zeros(turned, dtype)},
                            [](const Tensors& t) { copy(t[0].transpose(-1, -2), t[1]); }));
      }
  }
}

TEST_CASE("gates") {
  using Gate = std::function<void(const Tensors&, const Tensor& mask)>;
  const std::vector<Gate> gates{
      [](const Tensors& t, const Tensor& mask) { gated_product(t[0], t[1], mask, t[3]); },
      [](const Tensors& t, const Tensor& mask) {
        gated_product_backward(t[0], t[1], mask, t[2], t[3], t[4]);
      },
      [](const Tensors& t, const Tensor&) { sigmoid_gate_backward(t[0], t[1], t[2], t[3], t[4]); },
      [](const Tensors& t, const Tensor&) { silu_product(t[0], t[1], t[3]); },
      [](const Tensors& t, const Tensor&) {
        silu_product_backward(t[0], t[1], t[2], t[3], t[4], t[5]);
      }};
  for (const DType dtype : floating_dtypes)
    for (std::size_t gate = 0; gate < gates.size(); ++gate)
      for (const std::int64_t positions : ragged)
        for (const bool masked : {false, true})
          for (const std::int64_t gap : {0, 3}) {
            CAPTURE(name_of(dtype), gate, positions, masked, gap);
            Tensors operands;
            for (const char* name : {"u", "w", "dy"})
              operands.push_back(mixed_numbers({3, positions + gap}, dtype, name));
            for (int out = 0; out < 3; ++out)
              operands.push_back(Tensor::zeros({3, positions + gap}, dtype));
            operands.push_back(random_tensor({positions}, dtype, "mask"));
            CHECK(equal_on_both(operands, [&](const Tensors& t) {
              Tensors views;
              for (std::size_t i = 0; i < 6; ++i) views.push_back(t[i].narrow(1, 0, positions));
              gates[gate](views, masked ? t[6] : Tensor());
            }));
          }
}

TEST_CASE("scalars of a tensor") {
  const PlainCpu plain;
  for (const DType dtype : floating_dtypes)
    for (const std::int64_t n : {0, 1, 31, 33, 257, 1000, 70001}) {
      CAPTURE(name_of(dtype), n);
      for (const bool special : {false, true}) {
        const auto make = [&](const char* name) {
          return special ? mixed_numbers({n}, dtype, name) : random_tensor({n}, dtype, name);
        };
        const Tensor a = make("a"), b = make("b");
        const Tensor gpu_a = a.to(test_device()), gpu_b = b.to(test_device());
        const auto same = [](double x, double y) { return x == y || (x != x && y != y); };
        CHECK(same(max_abs(gpu_a), max_abs(a)));
        CHECK(all_finite(gpu_a) == all_finite(a));
        const Difference found = max_difference(gpu_a, gpu_b), expected = max_difference(a, b);
        CHECK(same(found.max_abs, expected.max_abs));
        CHECK(same(found.max_reference, expected.max_reference));
        // Of n terms that are not negative each order is off by n roundings of the sum at most.
        const double sum = sum_of_squares(a);
        const double off = std::abs(sum_of_squares(gpu_a) - sum);
        if (!special) CHECK(off <= 2 * static_cast<double>(n) * 0x1p-53 * sum);
      }
    }
}

TEST_CASE("reductions along dims") {
  struct Case {
    Shape shape;
    std::vector<int> dims;
  };
  std::vector<Case> cases{{{3, 5, 7}, {0, 2}}, {{40, 33}, {0}},          {{40, 33}, {1}},
                          {{5, 1, 33}, {1}},   {{300, 64}, {0}},         {{2, 9000}, {1}},
                          {{9000, 3}, {0}},    {{20, 30, 40}, {0, 1, 2}}};
  for (const std::int64_t n : ragged)
    if (n > 0) cases.push_back({{2, n}, {1}});
  for (const Fold op : {Fold::sum, Fold::maximum, Fold::minimum, Fold::argmax})
    for (const DType dtype : all_dtypes)
      for (const auto& [shape, dims] : cases) {
        if (op == Fold::argmax && dims.size() > 1) continue;
        CAPTURE(static_cast<int>(op), name_of(dtype), format_shape(shape));
        Shape out = shape;
        for (const int dim : dims) out[static_cast<std::size_t>(dim)] = 1;
        const DType out_dtype = op == Fold::argmax ? DType::i64 : dtype;
        CHECK(equal_on_both({whole_numbers(shape, dtype, "x"), Tensor::zeros(out, out_dtype)},
                            [&, d = dims](const Tensors& t) { fold(op, t[0], d, t[1]); }));
        CHECK(equal_on_both(
            {whole_numbers(room_for(shape), dtype, "x"), Tensor::zeros(out, out_dtype)},
            [&, d = dims](const Tensors& t) { fold(op, inside(t[0]), d, t[1]); }));
      }
  // A NaN is the maximum, the minimum and the argmax.
  for (const Fold op : {Fold::maximum, Fold::minimum, Fold::argmax})
    CHECK(equal_on_both({mixed_numbers({40, 333}, DType::f64, "x"),
                         Tensor::zeros({40, 1}, op == Fold::argmax ? DType::i64 : DType::f64)},
                        [&](const Tensors& t) { fold(op, t[0], {1}, t[1]); }));
}

TEST_CASE("sums over rows") {
  for (const DType dtype : floating_dtypes)
    for (const std::int64_t channels : {1, 31, 32, 33, 257})
      for (const std::int64_t rows : {0, 1, 33, 1000, 5000}) {
        CAPTURE(name_of(dtype), channels, rows);
        CHECK(
            equal_on_both({whole_numbers({rows, channels + 2}, dtype, "x"),
                           whole_numbers({channels}, at_least_f32(dtype), "sums")},
                          [&](const Tensors& t) { sum_rows(t[0].narrow(1, 1, channels), t[1]); }));
      }
}

TEST_CASE("rows by an index") {
  for (const std::int64_t count : ragged)
    for (const std::int64_t features : {1, 33, 257, 1500}) {
      CAPTURE(count, features);
      constexpr std::int64_t rows = 11;
      const Tensor index = Tensor::empty({count}, DType::i64);  // -1 .. rows - 1 in disorder
      for (std::int64_t k = 0; k < count; ++k)
        index.host_data<std::int64_t>()[k] = (k * 7919 + 3) % (rows + 1) - 1;
      for (const DType dtype : all_dtypes) {
        CAPTURE(name_of(dtype));
        CHECK(equal_on_both(
            {mixed_numbers({rows, features}, dtype, "src"), index,
             Tensor::full({count, features + 1}, 1, dtype)},
            [&](const Tensors& t) { gather_rows(t[0], t[1], t[2].narrow(1, 1, features)); }));
      }
      for (const DType src : floating_dtypes)
        for (const DType out : {DType::f64, DType::f32}) {
          CAPTURE(name_of(src), name_of(out));
          CHECK(equal_on_both({random_tensor({count, features + 1}, src, "src"), index,
                               random_tensor({rows, features}, out, "out")},
                              [&](const Tensors& t) {
                                scatter_add_rows(t[0].narrow(1, 1, features), t[1], t[2]);
                              }));
        }
    }
}

TEST_CASE("a row that is not there reads as NaN, and its neighbours as they are") {
  const Device device = test_device();
  const Tensor index =
      Tensor::from_values({3}, std::vector<double>{1, 2, 0}, DType::i64).to(device);
  const Tensor out = Tensor::zeros({3, 33}, DType::f32, device);
  gather_rows(Tensor::full({2, 33}, 5, DType::f32, device), index, out);
  const Tensor found = out.to(cpu_device);
  for (int f = 0; f < 33; ++f) {
    CHECK(found.host_data<float>()[f] == 5);
    CHECK(std::isnan(found.host_data<float>()[33 + f]));
    CHECK(found.host_data<float>()[66 + f] == 5);
  }
}

TEST_CASE("what is added to a row that is not there is left out") {
  const Device device = test_device();
  const Tensor index =
      Tensor::from_values({3}, std::vector<double>{1, 2, 1}, DType::i64).to(device);
  const Tensor out = Tensor::zeros({2, 33}, DType::f32, device);
  scatter_add_rows(Tensor::full({3, 33}, 5, DType::f32, device), index, out);
  const Tensor found = out.to(cpu_device);
  for (int f = 0; f < 33; ++f) {
    CHECK(found.host_data<float>()[f] == 0);
    CHECK(found.host_data<float>()[33 + f] == 10);
  }
}

// --- Layer norm.

struct LayerNormCase {
  DType dtype;
  std::int64_t rows, channels;
  bool rows_contiguous;
  // x, dy, y, dx; weight, bias; mean, rstd, dweight, dbias.
  Tensors operands() const {
    const Shape shape = rows_contiguous ? Shape{channels, rows + 1} : Shape{rows, channels + 1};
    const DType wide = at_least_f32(dtype);
    return {random_tensor(shape, dtype, "x"),      random_tensor(shape, dtype, "dy"),
            Tensor::zeros(shape, dtype),           Tensor::zeros(shape, dtype),
            random_tensor({channels}, wide, "w"),  random_tensor({channels}, wide, "b"),
            Tensor::zeros({rows}, wide),           Tensor::zeros({rows}, wide),
            random_tensor({channels}, wide, "dw"), random_tensor({channels}, wide, "db")};
  }
  Tensor view(const Tensor& t) const {
    return rows_contiguous ? t.narrow(1, 0, rows).transpose(0, 1) : t.narrow(1, 0, channels);
  }
  void operator()(const Tensors& t) const {
    layer_norm(view(t[0]), t[4], t[5], 1e-5, view(t[2]), t[6], t[7]);
    layer_norm_backward(view(t[1]), view(t[0]), t[4], t[6], t[7], view(t[3]), t[8], t[9]);
  }
  // Sums of n terms of at most s are off by n roundings of n s, means by those of s. x, dy and the
  // weights are below 1; rstd and so y, the terms of dweight and dx are below `scale`.
  std::vector<double> bounds(const Tensors& result) const {
    const double u = rounding_of(at_least_f32(dtype)), store = rounding_of(dtype);
    const double c = static_cast<double>(channels), r = static_cast<double>(rows);
    const double rstd = max_abs(result[7]);
    const double y = 2 * rstd;  // |x - mean| < 2
    const double of_mean = 2 * (c + 4) * u;
    const double of_rstd = rstd * (2 * (c + 8) * u + 4 * of_mean * rstd);
    const double of_y = 4 * (of_mean * rstd + 2 * of_rstd) + 4 * u * y;
    const double of_dx = rstd * (4 * (c + 8) * u * (1 + y) * (1 + y) + 4 * of_y * (1 + y)) +
                         4 * of_rstd * (1 + y) * (1 + y);
    const double of_dweight = r * of_y + 2 * (r + 8) * u * r * y;
    return {0,
            0,
            of_y + 2 * store * (y + 1),
            of_dx + 2 * store * rstd * (1 + y) * (1 + y),
            0,
            0,
            of_mean,
            of_rstd,
            of_dweight,
            2 * (r + 8) * u * r};
  }
};

TEST_CASE("layer norm, forward and backward") {
  for (const DType dtype : floating_dtypes)
    for (const bool rows_contiguous : {false, true})
      for (const std::int64_t channels : {2, 31, 32, 33, 128, 257, 1000, 1500})
        for (const std::int64_t rows : {1, 33, 257}) {
          CAPTURE(name_of(dtype), rows_contiguous, channels, rows);
          const LayerNormCase layer{dtype, rows, channels, rows_contiguous};
          const Tensors operands = layer.operands();
          const auto found = differences(operands, layer);
          const auto allowed = layer.bounds(after(layer, operands, cpu_device));
          for (std::size_t i = 0; i < found.size(); ++i) {
            CAPTURE(i);
            CHECK(found[i] <= allowed[i]);
          }
        }
}

TEST_CASE("layer norm with given statistics") {
  for (const DType dtype : floating_dtypes)
    for (const std::int64_t channels : ragged)
      CHECK(equal_on_both(
          {random_tensor({33, channels}, dtype, "x"), Tensor::zeros({33, channels}, dtype),
           random_tensor({channels}, dtype, "w"), random_tensor({channels}, dtype, "b"),
           random_tensor({33}, at_least_f32(dtype), "mean"),
           random_tensor({33}, at_least_f32(dtype), "rstd")},
          [](const Tensors& t) { layer_norm_apply(t[0], t[2], t[3], t[4], t[5], t[1]); }));
}

// The bounds above would notice what a wrong reduction does.
TEST_CASE("an error of a row's sum exceeds the bounds") {
  const LayerNormCase layer{DType::f32, 33, 257, false};
  const Tensors operands = layer.operands();
  const Tensors right = after(layer, operands, cpu_device);
  Tensors cut = operands;  // as if the last element were lost to the statistics
  cut[0] = operands[0].clone();
  fill(cut[0].narrow(1, 256, 1), 0);
  const Tensors wrong = after(layer, cut, cpu_device);
  const auto bounds = layer.bounds(right);
  for (const std::size_t i : {std::size_t{2}, std::size_t{6}, std::size_t{8}}) {
    CAPTURE(i);
    CHECK(max_difference(wrong[i], right[i]).max_abs > bounds[i]);
  }
}

TEST_CASE("block sizes change sums by their roundings and nothing else") {
  const LayerNormCase layer{DType::f32, 77, 1500, false};
  const Tensors operands = layer.operands();
  const auto allowed = layer.bounds(after(layer, operands, cpu_device));
  for (const int threads : sizes_of_blocks()) {
    const BlockThreads forced(threads, test_device());
    CAPTURE(threads);
    const auto found = differences(operands, layer);
    for (std::size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      CHECK(found[i] <= allowed[i]);
    }
    CHECK(equal_on_both({mixed_numbers({1000}, DType::f32, "a"), Tensor::zeros({1000}, DType::f32)},
                        [](const Tensors& t) { unary(Unary::sigmoid, t[0], t[1]); }));
  }
}

TEST_CASE("the same again gives the same bits") {
  const LayerNormCase layer{DType::f32, 3000, 33, false};
  const Tensors operands = layer.operands();
  const Tensors first = after(layer, operands, test_device());
  const Tensor x = random_tensor({70001}, DType::f64, "x");
  const double sum = sum_of_squares(x.to(test_device()));
  for (int again = 0; again < 3; ++again) {
    const Tensors next = after(layer, operands, test_device());
    for (std::size_t i = 0; i < first.size(); ++i) CHECK(bitwise_equal(first[i], next[i]));
    CHECK(sum_of_squares(x.to(test_device())) == sum);
  }
}

// --- The softmax of attention.

struct TermsCase {
  bool mask, bias, shared, mask_first;
  DType dtype;  // of both
};

TEST_CASE("softmax of tiles, forward and backward") {
  const std::vector<TermsCase> all_terms{{false, false, false, false, DType::f32},
                                         {true, false, true, true, DType::bf16},
                                         {false, true, false, false, DType::f64},
                                         {true, true, false, true, DType::f32},
                                         {true, true, true, false, DType::f32}};
  for (const DType dtype : {DType::f64, DType::f32})
    for (const TermsCase& terms : all_terms)
      for (const std::int64_t keys : {0, 1, 31, 32, 33, 257, 1300})
        for (const int threads : {32, 256}) {
          const BlockThreads forced(threads, test_device());
          CAPTURE(name_of(dtype), keys, threads, terms.mask, terms.bias, terms.shared);
          constexpr std::int64_t groups = 3, queries = 5, channels = 33;
          const std::int64_t term_groups = terms.shared ? 1 : groups;
          const Tensor mask = random_tensor({term_groups, queries, keys}, DType::f64, "mask");
          for (std::int64_t i = 0; i < mask.numel(); ++i)
            mask.host_data<double>()[i] = mask.host_data<double>()[i] > -0.5 ? 1 : 0;
          const Shape tile{groups, queries, keys};
          const Tensors operands{random_tensor(tile, dtype, "first"),
                                 random_tensor(tile, dtype, "second"),
                                 mask.to(terms.dtype),
                                 random_tensor({term_groups, queries, keys}, terms.dtype, "bias"),
                                 Tensor::zeros({groups, queries}, dtype),
                                 Tensor::zeros({groups, queries}, dtype),
                                 random_tensor({groups, queries, channels}, dtype, "weighted")};
          const auto terms_of = [&](const Tensors& t) {
            return LogitTerms{terms.mask ? t[2] : Tensor(), terms.bias ? t[3] : Tensor(), 1e9,
                              terms.mask_first};
          };
          const auto found = differences(operands, [&](const Tensors& t) {
            softmax_tile(t[0], terms_of(t), true, t[4], t[5], t[6]);
            softmax_tile(t[1], terms_of(t), false, t[4], t[5], t[6]);
          });
          for (const std::size_t i : {2u, 3u, 4u}) CHECK(found[i] == 0);
          // Weights, their sums and what they rescale; 2 * keys weights of at most 1.
          for (const std::size_t i : {0u, 1u, 6u}) CHECK(found[i] <= off_by(dtype));
          const double n = static_cast<double>(2 * keys);
          CHECK(found[5] <= (2 * (n + 4) * rounding_of(dtype) + off_by(dtype)) * n);

          const Tensors backward{operands[0],
                                 random_tensor(tile, dtype, "dweights"),
                                 operands[2],
                                 operands[3],
                                 Tensor::full({groups, queries}, 1, dtype),
                                 random_tensor({groups, queries}, dtype, "log_sum"),
                                 random_tensor({groups, queries}, dtype, "d"),
                                 random_tensor({term_groups, queries, keys}, dtype, "dbias")};
          CHECK(equal_on_both(backward, [&](const Tensors& t) {
            softmax_tile_backward(t[0], terms_of(t), t[4], t[5], t[6], t[1],
                                  terms.bias ? t[7] : Tensor());
          }));
        }
}

TEST_CASE("random numbers are those of the CPU") {
  CHECK(equal_on_both({Tensor::zeros({3, 333}, DType::f32)}, [](const Tensors& t) {
    fill_normal(t[0], {5, 6}, whole(t[0].shape()));
  }));
}

}  // namespace
}  // namespace tessera

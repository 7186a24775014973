// SPDX-License-Identifier: MIT
// ranks: 1
#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/parallel.hpp"

using namespace tessera;

namespace {

const std::vector<DType> all_dtypes{DType::f64, DType::f32, DType::bf16,
                                    DType::i64, DType::i32, DType::boolean};

// Rows with a gap between them.
Tensor with_gap(const Tensor& t) {
  const Tensor view =
      Tensor::full({t.size(0), t.size(1) + 5}, 3, t.dtype()).narrow(1, 2, t.size(1));
  copy(t, view);
  return view;
}

// -1, 0 ... rows - 1 in disorder, some several times.
Tensor disordered(std::int64_t count, std::int64_t rows) {
  const Tensor index = Tensor::empty({count}, DType::i64);
  for (std::int64_t k = 0; k < count; ++k)
    index.host_data<std::int64_t>()[k] = (k * 7919 + 3) % (rows + 1) - 1;
  return index;
}

Tensor every_second(const Tensor& index) {
  const Tensor view = Tensor::full({index.size(0), 2}, 1 << 20, DType::i64).select(1, 1);
  copy(index, view);
  return view;
}

}  // namespace

TEST_CASE("gather_rows takes the rows of the index and zeros") {
  for (const DType dtype : all_dtypes)
    for (const std::int64_t count : {0, 1, 5, 400})
      for (const std::int64_t features : {1, 3, 65}) {
        CAPTURE(name_of(dtype), count, features);
        const Tensor src = random_tensor({11, features}, DType::f64, "src");
        scale(100, src);
        const Tensor x = src.to(dtype);
        const Tensor index = disordered(count, 11);
        const Tensor out = with_gap(Tensor::full({count, features}, 1, dtype));
        gather_rows(with_gap(x), every_second(index), out);
        const auto values = to_values(x), found = to_values(out);
        const auto* at = index.host_data<std::int64_t>();
        std::vector<double> expected;
        for (std::int64_t k = 0; k < count; ++k)
          for (std::int64_t f = 0; f < features; ++f)
            expected.push_back(at[k] < 0 ? 0
                                         : values[static_cast<std::size_t>(at[k] * features + f)]);
        CHECK(found == expected);
        const Tensor plain = Tensor::full({count, features}, 1, dtype);
        gather_rows(x, index, plain);
        CHECK(bitwise_equal(plain, out));
      }
}

TEST_CASE("gather_rows keeps bits and leaves the gaps between rows alone") {
  const Tensor big = Tensor::empty({1, 1}, DType::i64);
  *big.host_data<std::int64_t>() = (std::int64_t{1} << 53) + 1;
  const Tensor out = Tensor::zeros({1, 1}, DType::i64);
  gather_rows(big, Tensor::zeros({1}, DType::i64), out);
  CHECK(bitwise_equal(out, big));
  const Tensor all = Tensor::full({4, 10}, 5, DType::f32);
  gather_rows(Tensor::zeros({2, 3}, DType::f32), disordered(4, 2), all.narrow(1, 4, 3));
  double sum = 0;
  for (const double value : to_values(all)) sum += value;
  CHECK(sum == 4 * 7 * 5);
}

TEST_CASE("scatter_add_rows adds to what is there") {
  for (const DType from : floating_dtypes)
    for (const DType to : {DType::f64, DType::f32})
      for (const std::int64_t count : {0, 1, 5, 400})
        for (const std::int64_t features : {1, 3, 65}) {
          CAPTURE(name_of(from), name_of(to), count, features);
          const Tensor src = random_tensor({count, features}, from, "src");
          const Tensor start = random_tensor({11, features}, to, "out");
          const Tensor index = disordered(count, 11);
          const auto values = to_values(src);
          std::vector<double> expected = to_values(start);
          const auto* at = index.host_data<std::int64_t>();
          for (std::size_t e = 0; e < values.size(); ++e) {
            const auto f = static_cast<std::int64_t>(e) % features;
            const std::int64_t row = at[static_cast<std::int64_t>(e) / features];
            if (row < 0) continue;
            double& sum = expected[static_cast<std::size_t>(row * features + f)];
            // In the order of the indices, each sum rounded to out's dtype: so nothing is off.
            sum += values[e];
            if (to == DType::f32) sum = static_cast<float>(sum);
          }
          const Tensor out = with_gap(start);
          scatter_add_rows(with_gap(src), every_second(index), out);
          CHECK(to_values(out) == expected);
          scatter_add_rows(src, index, start);
          CHECK(bitwise_equal(start, out));
        }
}

TEST_CASE("an expanded row is gathered and scattered like its copies") {
  const Tensor row = random_tensor({1, 9}, DType::f32, "row");
  const Tensor index = disordered(30, 6);
  const Tensor gathered = Tensor::empty({30, 9}, DType::f32),
               same = Tensor::empty({30, 9}, DType::f32);
  gather_rows(row.expand({6, 9}), index, gathered);
  gather_rows(row.expand({6, 9}).contiguous(), index, same);
  CHECK(bitwise_equal(gathered, same));
  const Tensor sums = Tensor::zeros({6, 9}, DType::f32), others = sums.clone();
  scatter_add_rows(row.expand({30, 9}), index, sums);
  scatter_add_rows(row.expand({30, 9}).contiguous(), index, others);
  CHECK(bitwise_equal(sums, others));
}

TEST_CASE("results do not depend on the number of threads") {
  const int before = thread_count();
  const Tensor src = random_tensor({5000, 40}, DType::f32, "src");
  const Tensor index = disordered(5000, 700);
  const auto compute = [&](int threads) {
    set_thread_count(threads);
    const Tensor sums = Tensor::zeros({700, 40}, DType::f32);
    scatter_add_rows(src, index, sums);
    const Tensor rows = Tensor::empty({5000, 40}, DType::f32);
    gather_rows(sums, index, rows);
    return rows;
  };
  const Tensor one = compute(1);
  for (const int threads : {2, 3, 7}) CHECK(bitwise_equal(one, compute(threads)));
  set_thread_count(before);
}

TEST_CASE("arange counts from zero") {
  CHECK(to_values(arange(5, cpu_device)) == std::vector<double>{0, 1, 2, 3, 4});
  CHECK(arange(0, cpu_device).shape() == Shape{0});
  CHECK(arange(3, cpu_device).dtype() == DType::i64);
  require_error<ShapeError>([] { arange(-1, cpu_device); }, "[-1]");
}

TEST_CASE("operations name the operand they refuse") {
  const Tensor src = Tensor::zeros({4, 3}, DType::f32);
  const Tensor out = Tensor::zeros({2, 3}, DType::f32);
  const Tensor index = Tensor::zeros({2}, DType::i64);
  const Tensor far = Tensor::from_values({2}, {-5, 4}, DType::i64);
  require_error<RangeError>([&] { gather_rows(src, far, out); }, "gather_rows", "'index'",
                            "index[1] = 4", "below 4");
  require_error<RangeError>([&] { scatter_add_rows(out, far, src); }, "scatter_add_rows", "'index'",
                            "index[1] = 4", "below 4");
  require_error<TypeError>([&] { gather_rows(src, index.to(DType::i32), out); }, "gather_rows",
                           "'index'", "i32", "i64");
  require_error<TypeError>([&] { gather_rows(src, index, out.to(DType::f64)); }, "gather_rows",
                           "'out'", "f64", "f32");
  require_error<ShapeError>([&] { gather_rows(src, index, src); }, "gather_rows", "'out'", "[4, 3]",
                            "[2, 3]");
  require_error<ShapeError>([&] { scatter_add_rows(src, index, src); }, "scatter_add_rows", "'src'",
                            "[4, 3]", "[2, 3]");
  require_error<StrideError>(
      [&] {
        gather_rows(Tensor::zeros({3, 4}, DType::f32).transpose(0, 1), index, out);
      },
      "gather_rows", "'src'");
  require_error<TypeError>([&] { scatter_add_rows(out, index, src.to(DType::bf16)); },
                           "scatter_add_rows", "'out'", "bf16", "f32");
  require_error<TypeError>([&] { scatter_add_rows(out.to(DType::i64), index, src); },
                           "scatter_add_rows", "'src'", "i64");
  require_error<StrideError>(
      [&] {
        gather_rows(src, index, out.narrow(0, 0, 1).expand({2, 3}));
      },
      "expanded");
}

TEST_CASE("the meta device computes shapes only") {
  const Device meta = meta_device;
  const Tensor src = Tensor::empty({4, 3}, DType::f32, meta);
  const Tensor index = arange(2, meta);
  const Tensor out = Tensor::empty({2, 3}, DType::f32, meta);
  gather_rows(src, index, out);
  scatter_add_rows(out, index, src);
  fold(Fold::sum, src, {0}, Tensor::empty({1, 3}, DType::f32, meta));
  binary(Binary::add, src, 1, src);
  select(src, src, src, src);
  CHECK(out.version() == 1);
  CHECK(src.version() == 3);
}

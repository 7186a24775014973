// SPDX-License-Identifier: MIT
// ranks: 1
// Also run with each instruction set forced, and on an emulated processor of 2008 (see
// CMakeLists.txt): code for a newer one that had leaked into an older variant would trap there.
#include <cstdlib>

#include "support/errors.hpp"
#include "support/tensors.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/kernels/dispatch.hpp"

using namespace tessera;

namespace {

// Every kernel, on sizes with and without remainders of the vector width.
std::vector<Tensor> compute(DType dtype) {
  const DType wide = at_least_f32(dtype);
  std::vector<Tensor> results;
  const auto output = [&](const Shape& shape, DType type) {
    return results.emplace_back(Tensor::zeros(shape, type));
  };
  for (const std::int64_t n : {64, 77}) {
    const Tensor a = random_tensor({n, n}, dtype, "a");
    const Tensor b = random_tensor({n, n}, dtype, "b");
    const Tensor t = b.transpose(0, 1);
    for (const auto& [x, y] : {std::pair{a, b}, {a, t}, {t, b}, {t, t}})
      gemm(0.7, x, y, 0, output({n, n}, dtype));
    add(0.5, a, 3, t, output({n, n}, dtype));
    multiply(a, b, output({n, n}, dtype));
    maximum(a, b, output({n, n}, dtype));
    copy(a, output({n, n}, DType::bf16));
    gated_product(a, b, {}, output({n, n}, dtype));
    silu_product_backward(a, b, t.contiguous(), output({n, n}, dtype), output({n, n}, dtype),
                          output({n, n}, dtype));
    const Tensor weight = random_tensor({n}, wide, "w");
    for (const Tensor& x : {a, t}) {
      const Tensor mean = output({n}, wide), rstd = output({n}, wide);
      layer_norm(x, weight, weight, 1e-5, output({n, n}, dtype), mean, rstd);
      layer_norm_backward(x, x, weight, mean, rstd, output({n, n}, dtype), output({n}, wide),
                          output({n}, wide));
    }
    sum_rows(a, output({n}, wide));
    unary(Unary::sigmoid, a, output({n, n}, dtype));
    unary(Unary::round, a, output({n, n}, DType::f32));
    binary(Binary::divide, a, 3, output({n, n}, dtype));
    for (const Fold op : {Fold::sum, Fold::maximum})
      for (const int dim : {0, 1})
        fold(op, a, {dim}, output(dim == 0 ? Shape{1, n} : Shape{n, 1}, wide));
    const Tensor index = arange(n, cpu_device);
    gather_rows(a, index, output({n, n}, dtype));
    scatter_add_rows(a, index, output({n, n}, wide));
    results.push_back(Tensor::full({1}, sum_of_squares(a), DType::f64));
  }
  return results;
}

}  // namespace

TEST_CASE("the instruction set in use is the one asked for, else the best") {
  const auto& variants = cpu_variants();
  CHECK(instruction_sets().size() == variants.size());
  std::string expected;
  for (const CpuVariant& variant : variants)
    if (variant.supported) expected = variant.name;
  if (const char* forced = std::getenv("TESSERA_ISA"))
    for (const CpuVariant& variant : variants)
      if (variant.short_name == forced) expected = variant.name;
  CHECK(instruction_set() == expected);
  WARN("instruction set: " << instruction_set());
}

TEST_CASE("all instruction sets give the same results within rounding") {
  const std::string before = cpu_variant().short_name;
  for (const DType dtype : floating_dtypes) {
    std::vector<Tensor> first;
    for (const CpuVariant& variant : cpu_variants()) {
      if (!variant.supported) continue;
      force_cpu_variant(variant.short_name);
      const auto results = compute(dtype);
      if (first.empty()) first = results;
      for (std::size_t i = 0; i < results.size(); ++i) {
        CAPTURE(name_of(dtype), variant.name, i);
        REQUIRE(all_finite(results[i]));
        const Difference d = max_difference(results[i], first[i]);
        // Sums of at most 77 terms in another order, or one rounding of the result's dtype.
        CHECK(d.max_abs <= d.max_reference * 2 *
                               std::fmax(rounding_of(results[i].dtype()),
                                         77 * rounding_of(at_least_f32(dtype))));
      }
    }
  }
  force_cpu_variant(before);
}

TEST_CASE("an instruction set that is unknown or missing is refused") {
  require_error<UsageError>([] { force_cpu_variant("v9"); }, "TESSERA_ISA", "found v9",
                            cpu_variants().back().short_name);
  for (const CpuVariant& variant : cpu_variants())
    if (!variant.supported)
      require_error<UsageError>([&] { force_cpu_variant(variant.short_name); }, "TESSERA_ISA",
                                variant.short_name, "lacks");
}

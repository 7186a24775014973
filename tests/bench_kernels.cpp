// SPDX-License-Identifier: MIT
// Rates of the local operations on this machine, one thread:
//   cmake --build build --target bench_kernels && build/tests/bench_kernels
// Row operations work on chunks that stay in L2, as block functions call them; their rate counts
// each operand's bytes once. Products come with their rate in flops.
#include <benchmark/benchmark.h>

#include <functional>
#include <string>

#include "tessera/layers/math/attention.hpp"
#include "tessera/runtime/info.hpp"
#include "tessera/runtime/ops.hpp"
#include "tessera/runtime/parallel.hpp"
#include "tessera/runtime/random.hpp"

using namespace tessera;

namespace {

Tensor operand(const Shape& shape, DType dtype) {
  const Tensor t = Tensor::empty(shape, dtype);
  fill_uniform(t, {1, 2}, whole(shape), -1, 1);
  return t;
}

void product(const std::string& name, DType dtype, std::int64_t batch, std::int64_t m,
             std::int64_t n, std::int64_t k, int order = 0) {
  const auto matrix = [=](std::int64_t rows, std::int64_t columns, bool turned) {
    if (!turned) return operand({batch, rows, columns}, dtype);
    return operand({batch, columns, rows}, dtype).transpose(1, 2);
  };
  const std::string label = "gemm/" + std::string(name_of(dtype)) + "/" + name +
                            (order == 0   ? ""
                             : order == 1 ? "/TN"
                             : order == 2 ? "/NT"
                                          : "/TT");
  benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
    const Tensor a = matrix(m, k, order & 1);
    const Tensor b = matrix(k, n, order & 2);
    const Tensor c = operand({batch, m, n}, dtype);
    for (auto _ : state) gemm(1, a, b, 0, c);
    state.counters["flops"] = benchmark::Counter(2.0 * static_cast<double>(batch * m * n * k),
                                                 benchmark::Counter::kIsIterationInvariantRate);
  });
}

// `body` works on operands of [rows, columns]; `passes` of them are read or written.
void rows(const std::string& name, DType dtype, const Shape& shape, int passes,
          const std::function<void(const std::vector<Tensor>&)>& body, bool turned = false) {
  benchmark::RegisterBenchmark(
      (name + "/" + std::string(name_of(dtype)) + "/" + format_shape(shape)).c_str(),
      [=](benchmark::State& state) {
        std::vector<Tensor> t;
        for (int i = 0; i < 6; ++i)
          t.push_back(turned ? operand({shape[1], shape[0]}, dtype).transpose(0, 1)
                             : operand(shape, dtype));
        for (int i = 0; i < 2; ++i) t.push_back(operand({shape[1]}, at_least_f32(dtype)));
        for (int i = 0; i < 2; ++i) t.push_back(operand({shape[0]}, at_least_f32(dtype)));
        for (auto _ : state) body(t);
        state.SetBytesProcessed(state.iterations() * passes * t[0].bytes());
      });
}

void add_rows(DType dtype, const Shape& s) {
  using T = std::vector<Tensor>;
  for (const bool turned : {false, true}) {
    const std::string suffix = turned ? "_by_row" : "";
    rows(
        "layer_norm" + suffix, dtype, s, 2,
        [](const T& t) { layer_norm(t[0], t[6], t[7], 1e-5, t[1], t[8], t[9]); }, turned);
    rows(
        "layer_norm_backward" + suffix, dtype, s, 3,
        [](const T& t) { layer_norm_backward(t[0], t[1], t[6], t[8], t[9], t[2], t[6], t[7]); },
        turned);
  }
  rows("gated_product", dtype, s, 3, [](const T& t) { gated_product(t[0], t[1], {}, t[2]); });
  rows("gated_product_backward", dtype, s, 5,
       [](const T& t) { gated_product_backward(t[0], t[1], {}, t[2], t[3], t[4]); });
  rows("silu_product", dtype, s, 3, [](const T& t) { silu_product(t[0], t[1], t[2]); });
  rows("silu_product_backward", dtype, s, 6,
       [](const T& t) { silu_product_backward(t[0], t[1], t[2], t[3], t[4], t[5]); });
  rows("add", dtype, s, 3, [](const T& t) { add(1, t[0], 1, t[1], t[2]); });
  rows("copy", dtype, s, 2, [](const T& t) { copy(t[0], t[1]); });
  rows("sum_rows", dtype, s, 1, [](const T& t) { sum_rows(t[0], t[6]); });
}

struct AttentionSizes {
  std::int64_t rows, queries, keys, heads, channels, biases;
};

// Blocks of attention with a key mask, forward and backward; own flops.
void attention(const std::string& name, DType dtype, const AttentionSizes& s) {
  const auto run = [=](benchmark::State& state, bool backward) {
    const DType acc = at_least_f32(dtype);
    const Shape queries{s.rows, s.queries, s.heads, s.channels};
    const Shape keys{s.rows, s.keys, s.heads, s.channels};
    const Shape biases{s.biases, s.heads, s.queries, s.keys};
    math::AttentionOperands o{
        operand(queries, dtype), operand(keys, dtype), operand(keys, dtype),
        operand({s.rows, 1, s.keys}, dtype).expand({s.rows, s.queries, s.keys}),
        operand(biases, dtype)};
    const math::AttentionState forward = math::make_state(o.q);
    math::attention_block(o, true, forward, {});
    math::finish(forward);
    const math::AttentionState again = math::make_state(o.q);
    const Tensor dout = operand(queries, dtype), d = math::row_dots(dout, forward.weighted);
    const math::AttentionGradients g{Tensor::zeros(queries, acc), Tensor::zeros(keys, acc),
                                     Tensor::zeros(keys, acc), Tensor::zeros(biases, acc)};
    for (auto _ : state) {
      if (backward)
        math::attention_block_backward(o, forward.maximum, forward.sum, dout, d, g, {});
      else
        math::attention_block(o, true, again, {});
    }
    const auto products = static_cast<double>(s.rows * s.queries * s.keys * s.heads * s.channels);
    state.counters["flops"] = benchmark::Counter((backward ? 10 : 4) * products,
                                                 benchmark::Counter::kIsIterationInvariantRate);
  };
  for (const bool backward : {false, true}) {
    const std::string label = std::string("attention") + (backward ? "_backward/" : "/") +
                              std::string(name_of(dtype)) + "/" + name;
    benchmark::RegisterBenchmark(label.c_str(), run, backward)->Unit(benchmark::kMillisecond);
  }
}

}  // namespace

int main(int argc, char** argv) {
  set_thread_count(1);
  benchmark::AddCustomContext("instruction_set", instruction_set());
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    product("1024x1024x1024", dtype, 1, 1024, 1024, 1024);
    for (int order = 0; order < 4; ++order)
      product("16x256x256x256", dtype, 16, 256, 256, 256, order);
    product("512x256x128", dtype, 1, 512, 256, 128);
    product("256x128x128", dtype, 1, 256, 128, 128);
    product("128x128x65536", dtype, 1, 128, 128, 65536, 1);
    product("128x512x256", dtype, 1, 128, 512, 256, 1);
    attention("triangle", dtype, {256, 256, 256, 4, 32, 1});
    attention("single", dtype, {1, 256, 256, 16, 24, 1});
    attention("windows", dtype, {256, 32, 128, 4, 32, 256});
    add_rows(dtype, {256, 128});
    rows("copy_transposed", dtype, {256, 256}, 2,
         [](const std::vector<Tensor>& t) { copy(t[0].transpose(0, 1), t[1]); });
    rows("copy_transposed", dtype, {4096, 2048}, 2, [](const std::vector<Tensor>& t) {
      copy(t[0].view({2048, 4096}).transpose(0, 1), t[1]);
    });
    rows("add", dtype, {4096, 4096}, 3,
         [](const std::vector<Tensor>& t) { add(1, t[0], 1, t[1], t[2]); });
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}

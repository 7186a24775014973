// SPDX-License-Identifier: MIT
#include "tessera/runtime/kernels/gates.hpp"

#include "tessera/runtime/cpu/variant.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {
namespace {

template <class Body, class T, bool masked>
void run(const T* const* in, T* const* out, const Acc<T>* mask, std::int64_t length) {
  const T* in0 = in[0];
  const T* in1 = in[1];
  const T* in2 = in[2];
  T* out0 = out[0];
  T* out1 = out[1];
  T* out2 = out[2];
  // An operand may be written over, at the same place only. (With `omp simd` GCC keeps the local
  // arrays in memory and gives up.)
#pragma GCC ivdep
  for (std::int64_t p = 0; p < length; ++p) {
    const Acc<T> x[3] = {load(in0[p]), load(in1[p]), Body::inputs > 2 ? load(in2[p]) : Acc<T>(0)};
    Acc<T> y[3];
    Body::apply(x, masked ? mask[p] : Acc<T>(1), y);
    store(out0[p], y[0]);
    if constexpr (Body::outputs > 1) store(out1[p], y[1]);
    if constexpr (Body::outputs > 2) store(out2[p], y[2]);
  }
}

template <class Body, class T>
void blocks_of(const GateArgs& args, Range blocks) {
  const std::int64_t per_row = (args.positions + kGateBlock - 1) / kGateBlock;
  for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
    const std::int64_t row = block / per_row;
    const std::int64_t first = block % per_row * kGateBlock;
    const std::int64_t length = smaller(kGateBlock, args.positions - first);
    const T* in[3] = {};
    T* out[3] = {};
    for (int i = 0; i < Body::inputs; ++i)
      in[i] = pointer<T>(args.in[i].data) + row * args.in[i].row_stride + first;
    for (int o = 0; o < Body::outputs; ++o)
      out[o] = pointer<T>(args.out[o].data) + row * args.out[o].row_stride + first;
    if (args.mask != nullptr)
      run<Body, T, true>(in, out, pointer<Acc<T>>(args.mask) + first, length);
    else
      run<Body, T, false>(in, out, nullptr, length);
  }
}

}  // namespace

void gate(const GateArgs& args, Range blocks) {
  with_gate(args.op, [&](auto body) {
    with_floating(args.dtype, [&](auto type) {
      blocks_of<typename decltype(body)::type, typename decltype(type)::type>(args, blocks);
    });
  });
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

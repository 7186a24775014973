// SPDX-License-Identifier: MIT
// Bodies of the gates, one element each: in[] and out[] in the order of their operation's
// arguments (ops.hpp).
#pragma once

#include "tessera/runtime/kernels/math.hpp"
#include "tessera/runtime/kernels/table.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

struct GatedProduct {  // u, w -> h
  static constexpr int inputs = 2;
  static constexpr int outputs = 1;
  template <class A>
  TESSERA_HD static void apply(const A* in, A mask, A* out) {
    out[0] = in[0] * sigmoid(in[1]).value * mask;
  }
};

struct GatedProductBackward {  // h, w, dh -> du, dw
  static constexpr int inputs = 3;
  static constexpr int outputs = 2;
  template <class A>
  TESSERA_HD static void apply(const A* in, A mask, A* out) {
    const Sigmoid<A> s = sigmoid(in[1]);
    out[0] = in[2] * s.value * mask;
    out[1] = in[2] * in[0] * s.complement;
  }
};

struct SigmoidGateBackward {  // x, g, dy -> dx, dg
  static constexpr int inputs = 3;
  static constexpr int outputs = 2;
  template <class A>
  TESSERA_HD static void apply(const A* in, A, A* out) {
    const Sigmoid<A> s = sigmoid(in[1]);
    out[0] = in[2] * s.value;
    out[1] = out[0] * in[0] * s.complement;
  }
};

struct SiluProduct {  // u, w -> y
  static constexpr int inputs = 2;
  static constexpr int outputs = 1;
  template <class A>
  TESSERA_HD static void apply(const A* in, A, A* out) {
    out[0] = in[0] * sigmoid(in[0]).value * in[1];
  }
};

struct SiluProductBackward {  // u, w, dy -> du, dw, y
  static constexpr int inputs = 3;
  static constexpr int outputs = 3;
  template <class A>
  TESSERA_HD static void apply(const A* in, A, A* out) {
    const Sigmoid<A> s = sigmoid(in[0]);
    const A silu = in[0] * s.value;
    out[0] = in[2] * in[1] * (s.value + silu * s.complement);
    out[1] = in[2] * silu;
    out[2] = silu * in[1];
  }
};

// Calls body(Type<...>{}) with the gate's body.
template <class Body>
inline void with_gate(Gate op, Body&& body) {
  switch (op) {
    case Gate::gated_product:
      return body(Type<GatedProduct>{});
    case Gate::gated_product_backward:
      return body(Type<GatedProductBackward>{});
    case Gate::sigmoid_gate_backward:
      return body(Type<SigmoidGateBackward>{});
    case Gate::silu_product:
      return body(Type<SiluProduct>{});
    case Gate::silu_product_backward:
      return body(Type<SiluProductBackward>{});
  }
}

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

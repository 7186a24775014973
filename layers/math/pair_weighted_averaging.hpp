// SPDX-License-Identifier: MIT
// Block functions of pair-weighted averaging (Abramson et al., Nature 630 (2024), Suppl. Alg. 10,
// in the form of the Boltz-2 class of models). Local, no mesh.
//
//   w = softmax over k of LN_z(z) Wz^T + infinity (mask - 1)   (pair_bias.hpp and the schedule)
//   mh = LN_m(m);  v = mh Wm^T;  o[s,q,h,:] = sum_k w[q,k,h] v[s,k,h,:]        (schedule)
//   y = (o * sigmoid(mh Wg^T)) Wo^T
//
// Layouts. m, y: channels last, [B, s, n, Cm]. v, o and their gradients: channels
// first, [B*K, s, n], K = heads * width, so that one product serves a head:
// [width*s, k] [k, q]. Logits and weights: [B*heads, q, k]. The layer takes the heads in groups,
// one after the other; functions of the MSA side see the K channels and the weights of one group.
#pragma once

#include <vector>

#include "tessera/layers/math/tile.hpp"

namespace tessera::math {

struct AveragingMsaWeights {
  Tensor norm_weight, norm_bias;  // [Cm]
  Tensor proj_m, proj_g;          // [K, Cm]
  Tensor proj_o;                  // [Cm, K]
};
// v [B*K, s, n] in m's dtype. `first` computes the statistics of m and writes them, else they are
// read.
Tensor averaging_values(const Tensor& m, const AveragingMsaWeights& w, bool first,
                        const Statistics& statistics);

// y += (o * sigmoid(mh Wg^T)) Wo^T; y [B, s, n, Cm] in acc, which `first` overwrites. o in m's
// dtype.
void averaging_output(const Tensor& o, const Tensor& m, const Statistics& statistics,
                      const AveragingMsaWeights& w, bool first, const Tensor& y);

struct AveragingOutputGradients {
  Tensor o;               // [B*K, s, n] in m's dtype: it travels
  Tensor proj_g, proj_o;  // in acc
};
// The gate's part of the gradient of mh is added to dmh [B, s, n, Cm] in acc, which `first`
// overwrites.
AveragingOutputGradients averaging_output_backward(const Tensor& dy, const Tensor& o,
                                                   const Tensor& m, const Statistics& statistics,
                                                   const AveragingMsaWeights& w, bool first,
                                                   const Tensor& dmh);

// Adds the part of the values to dmh; returns the gradient of proj_m. dv in acc.
Tensor averaging_values_backward(const Tensor& dv, const Tensor& m, const Statistics& statistics,
                                 const AveragingMsaWeights& w, const Tensor& dmh);

struct NormGradients {
  Tensor x;             // in x's dtype
  Tensor weight, bias;  // in acc
};
// LN_m; dmh is consumed.
NormGradients averaging_norm_backward(const Tensor& dmh, const Tensor& m,
                                      const Statistics& statistics, const Tensor& weight);

}  // namespace tessera::math

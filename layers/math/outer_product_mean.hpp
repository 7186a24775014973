// SPDX-License-Identifier: MIT
// Block functions of the outer product mean (Jumper et al., Nature 596 (2021), Suppl. Alg. 10, with
// masked rows left out of the mean). Local, no mesh.
//
//   mh = LN(m);  a = (mh Wa^T) * mask;  b = (mh Wb^T) * mask
//   num[i,j] = max(1, sum_s mask[s,i] mask[s,j])
//   y[i,j] = (sum_s a[s,i] (x) b[s,j]) Wo^T / num[i,j] + bias     (x): all h*h products, a's
//   channel slow
//
// The h*h products of a pair exist only for a block of pairs that stays in cache: they are
// projected at once, and the projections are summed over the panels of rows s.
//
// Layouts. m [B, s, n, c]; mask [B, s, n]; factors [B, s, n*h], channels fast; y and the sums of
// projections [B, I, J, out]; num [B, I, J].
#pragma once

#include <functional>

#include "tessera/layers/math/tile.hpp"

namespace tessera::math {

struct OuterWeights {
  Tensor norm_weight;  // [c]
  Tensor norm_bias;    // [c]
  Tensor proj_a;       // [h, c]
  Tensor proj_b;       // [h, c]
};

// a and b in m's dtype. With counts each token has one channel more, its mask.
struct OuterFactors {
  Tensor a, b;            // [B, s, n*h] or [B, s, n*(h+1)]
  Statistics statistics;  // of m
};
OuterFactors outer_factors(const Tensor& m, const Tensor& mask, const OuterWeights& w,
                           bool with_counts);

// A panel [B, s, n*(h+1)] as it travels: all factors, then all masks, one after the other, so that
// products read them where they arrive.
Tensor outer_panel(const Tensor& with_masks, std::int64_t hidden);
// The two parts of one: [B, s, n*h] and [B, s, n], views.
struct OuterPanel {
  Tensor factor, mask;
};
OuterPanel parts_of(const Tensor& panel, std::int64_t batch, std::int64_t tokens,
                    std::int64_t hidden);

// sums [B, I, J, out] (+)= (sum_s a[s,i] (x) b[s,j]) Wo^T, in acc; overwritten if `first`.
// a [B, s, I*h], b [B, s, J*h], of one dtype; proj_o [out, h*h] in acc. `progress` is called now
// and then from the thread that called.
void outer_block(const Tensor& a, const Tensor& b, const Tensor& proj_o, bool first,
                 const Tensor& sums, const std::function<void()>& progress);

// y = sums / num + bias, in `dtype`; in the memory of sums if that has it.
Tensor outer_mean(const Tensor& sums, const Tensor& num, const Tensor& bias, DType dtype);

// Gradients of outer_block, added to; all in acc, also a, b and proj_o. The gradient of its sums is
// dy / num. The products are formed again.
struct OuterBlockGradients {
  Tensor a;       // [B, s, I*h]
  Tensor b;       // [B, s, J*h]
  Tensor proj_o;  // [out, h*h]
};
void outer_block_backward(const Tensor& a, const Tensor& b, const Tensor& proj_o, const Tensor& dy,
                          const Tensor& num, const OuterBlockGradients& gradients,
                          const std::function<void()>& progress);

struct OuterFactorsGradients {
  Tensor m;  // in m's dtype
  OuterWeights weights;
};
// da, db [B, s, n*h] in acc.
OuterFactorsGradients outer_factors_backward(const Tensor& da, const Tensor& db, const Tensor& m,
                                             const Tensor& mask, const Statistics& statistics,
                                             const OuterWeights& w);

}  // namespace tessera::math

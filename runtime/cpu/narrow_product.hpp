// SPDX-License-Identifier: MIT
// Products with few columns, such as those of attention weights with values: there Eigen spends
// much of its time on packing a. Here only b is packed, a panel of columns at a time; a is read
// where it is, and the sums of a block of c stay in registers.
#pragma once

#include "tessera/runtime/cpu/variant.hpp"

namespace tessera::TESSERA_KERNELS_NAMESPACE {

template <class T>
struct Operand {
  const T* data;
  std::int64_t row_stride;
  std::int64_t column_stride;
};
template <class T>
struct Product {  // c = alpha a b + beta c, c with unit column stride
  T alpha, beta;
  std::int64_t m, n, k;
  Operand<T> a, b;
  T* c;
  std::int64_t c_stride;
};

namespace narrow_product {

#if defined(__AVX512F__)
constexpr bool kHalves = true;  // of vectors are worth it
constexpr unsigned kVectorBytes = 64;
constexpr unsigned kRows = 12;  // by two vectors, of 32 registers
#elif defined(__AVX__)
constexpr bool kHalves = false;
constexpr unsigned kVectorBytes = 32;
constexpr unsigned kRows = 6;
#else
constexpr bool kHalves = false;
constexpr unsigned kVectorBytes = 16;
constexpr unsigned kRows = 6;
#endif
constexpr std::int64_t kDepth = 256;  // rows of a panel: it stays in L1

template <class T>
constexpr std::int64_t kPerVector = kVectorBytes / sizeof(T);
template <class T, unsigned bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
};
template <class T>
using Whole = typename VectorOf<T, kVectorBytes>::type;
template <class T>
using Half = typename VectorOf<T, kVectorBytes / 2>::type;
struct None {};

// Some rows of b, each of one vector or two.
template <class T, class Left, class Right>
struct Panel {
  struct Row {
    Left left;
    Right right;
  };
  static constexpr unsigned width =
      (sizeof(Left) + (is_same<Right, None> ? 0 : sizeof(Right))) / sizeof(T);
  Row rows[kDepth];
  T* row(std::int64_t k) { return reinterpret_cast<T*>(rows + k); }
};

// Rows [0, depth) of b, of which columns beyond the first `columns` count as zero.
template <class T, class Left, class Right>
void pack(const Operand<T>& b, std::int64_t depth, std::int64_t columns,
          Panel<T, Left, Right>& panel) {
  constexpr unsigned width = Panel<T, Left, Right>::width;
  for (std::int64_t k = 0; k < depth; ++k)
    for (std::int64_t j = columns; j < width; ++j) panel.row(k)[j] = T(0);
  if (b.column_stride != 1)
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t k = 0; k < depth; ++k)
        panel.row(k)[j] = b.data[k * b.row_stride + j * b.column_stride];
  else if (columns == width)
    for (std::int64_t k = 0; k < depth; ++k)
      __builtin_memcpy(panel.row(k), b.data + k * b.row_stride, width * sizeof(T));
  else
    for (std::int64_t k = 0; k < depth; ++k)
      for (std::int64_t j = 0; j < columns; ++j) panel.row(k)[j] = b.data[k * b.row_stride + j];
}

template <class T>
void store_row(const T* sums, std::int64_t columns, T alpha, T beta, T* c) {
  if (beta == T(0))
    for (std::int64_t j = 0; j < columns; ++j) c[j] = alpha * sums[j];
  else
    for (std::int64_t j = 0; j < columns; ++j) c[j] = alpha * sums[j] + beta * c[j];
}

// `rows` rows of a by a panel; a and c of `p` begin there.
template <unsigned rows, class T, class Left, class Right>
void multiply_rows(const Product<T>& p, const Panel<T, Left, Right>& panel) {
  constexpr unsigned width = Panel<T, Left, Right>::width;
  Left left[rows] = {};
  Right right[rows] = {};
  const T* a = p.a.data;
  for (std::int64_t k = 0; k < p.k; ++k, a += p.a.column_stride) {
    const auto b = panel.rows[k];
#pragma GCC unroll 16
    for (unsigned i = 0; i < rows; ++i) {
      const T x = a[i * p.a.row_stride];
      left[i] += x * b.left;
      if constexpr (!is_same<Right, None>) right[i] += x * b.right;
    }
  }
#pragma GCC unroll 16
  for (unsigned i = 0; i < rows; ++i) {
    const typename Panel<T, Left, Right>::Row sums{left[i], right[i]};
    T row[width];
    __builtin_memcpy(row, &sums, sizeof row);
    T* const c = p.c + i * p.c_stride;
    if (p.n == width)
      store_row(row, width, p.alpha, p.beta, c);
    else
      store_row(row, p.n, p.alpha, p.beta, c);
  }
}

// All rows, in blocks of `rows` and then of less.
template <unsigned rows, class T, class Left, class Right>
void multiply_panel(Product<T> p, const Panel<T, Left, Right>& panel) {
  for (; p.m >= rows; p.m -= rows) {
    multiply_rows<rows>(p, panel);
    p.a.data += rows * p.a.row_stride;
    p.c += rows * p.c_stride;
  }
  if constexpr (rows > 1) {
    constexpr unsigned fewer = rows > 8 ? 8 : rows > 4 ? 4 : rows / 2;
    if (p.m > 0) multiply_panel<fewer>(p, panel);
  }
}

template <class Left, class Right, class T>
void multiply_columns(const Product<T>& p) {
  Panel<T, Left, Right> panel;
  for (std::int64_t first = 0; first < p.k; first += kDepth) {
    Product<T> part = p;
    part.k = smaller(kDepth, p.k - first);
    part.a.data += first * p.a.column_stride;
    part.b.data += first * p.b.row_stride;
    if (first > 0) part.beta = T(1);
    pack(part.b, part.k, part.n, panel);
    multiply_panel<kRows>(part, panel);
  }
}

template <class T>
void multiply(const Product<T>& p) {
  constexpr std::int64_t vector = kPerVector<T>;
  for (std::int64_t column = 0; column < p.n; column += 2 * vector) {
    Product<T> part = p;
    part.n = smaller(2 * vector, p.n - column);
    part.b.data += column * p.b.column_stride;
    part.c += column;
    if (part.n <= vector)
      multiply_columns<Whole<T>, None>(part);
    else if (kHalves && part.n <= vector + vector / 2)
      multiply_columns<Whole<T>, Half<T>>(part);
    else
      multiply_columns<Whole<T>, Whole<T>>(part);
  }
}

// Whether it is faster this way.
template <class T>
bool suits(const Product<T>& p) {
  return p.m >= 32 && p.n <= 64 && p.n >= kPerVector<T>;
}

}  // namespace narrow_product

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

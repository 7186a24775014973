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
constexpr unsigned kVectorBytes = 64;
constexpr unsigned kRows = 12;  // by two vectors, of 32 registers
#elif defined(__AVX__)
constexpr unsigned kVectorBytes = 32;
constexpr unsigned kRows = 6;
#else
constexpr unsigned kVectorBytes = 16;
constexpr unsigned kRows = 6;
#endif
constexpr std::int64_t kDepth = 256;  // rows of a panel: it stays in L1

template <class T, unsigned vectors>
struct Panel {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr unsigned width = vectors * kVectorBytes / sizeof(T);
  Vector rows[kDepth][vectors];
};

// Rows [0, depth) of b, of which columns beyond the first `columns` count as zero.
template <class T, unsigned vectors>
void pack(const Operand<T>& b, std::int64_t depth, std::int64_t columns, Panel<T, vectors>& panel) {
  constexpr unsigned width = Panel<T, vectors>::width;
  T* const to = reinterpret_cast<T*>(panel.rows);
  if (columns < width)
    for (std::int64_t i = 0; i < depth * width; ++i) to[i] = T(0);
  if (b.column_stride == 1)
    for (std::int64_t k = 0; k < depth; ++k)
      for (std::int64_t j = 0; j < columns; ++j) to[k * width + j] = b.data[k * b.row_stride + j];
  else
    for (std::int64_t j = 0; j < columns; ++j)
      for (std::int64_t k = 0; k < depth; ++k)
        to[k * width + j] = b.data[k * b.row_stride + j * b.column_stride];
}

template <class T>
void store_row(const T* sums, std::int64_t columns, T alpha, T beta, T* c) {
  if (beta == T(0))
    for (std::int64_t j = 0; j < columns; ++j) c[j] = alpha * sums[j];
  else
    for (std::int64_t j = 0; j < columns; ++j) c[j] = alpha * sums[j] + beta * c[j];
}

// `rows` rows of a by a panel; a and c of `p` begin there.
template <unsigned rows, class T, unsigned vectors>
void multiply_rows(const Product<T>& p, const Panel<T, vectors>& panel) {
  using Vector = typename Panel<T, vectors>::Vector;
  constexpr unsigned width = Panel<T, vectors>::width;
  Vector sums[rows][vectors] = {};
  const T* a = p.a.data;
  for (std::int64_t k = 0; k < p.k; ++k, a += p.a.column_stride) {
#pragma GCC unroll 16
    for (unsigned i = 0; i < rows; ++i) {
      const T x = a[i * p.a.row_stride];
#pragma GCC unroll 2
      for (unsigned v = 0; v < vectors; ++v) sums[i][v] += x * panel.rows[k][v];
    }
  }
#pragma GCC unroll 16
  for (unsigned i = 0; i < rows; ++i) {
    T row[width];
    __builtin_memcpy(row, sums[i], sizeof row);
    T* const c = p.c + i * p.c_stride;
    if (p.n == width)
      store_row(row, width, p.alpha, p.beta, c);
    else
      store_row(row, p.n, p.alpha, p.beta, c);
  }
}

// All rows, in blocks of `rows` and then of less.
template <unsigned rows, class T, unsigned vectors>
void multiply_panel(Product<T> p, const Panel<T, vectors>& panel) {
  for (; p.m >= rows; p.m -= rows) {
    multiply_rows<rows>(p, panel);
    p.a.data += rows * p.a.row_stride;
    p.c += rows * p.c_stride;
  }
  if constexpr (rows > 1) {
    if (p.m > 0) multiply_panel<rows / 2>(p, panel);
  }
}

// At most `vectors` vectors of columns.
template <unsigned vectors, class T>
void multiply_columns(const Product<T>& p) {
  Panel<T, vectors> panel;
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
  constexpr unsigned width = Panel<T, 2>::width;
  for (std::int64_t column = 0; column < p.n; column += width) {
    Product<T> part = p;
    part.n = smaller(width, p.n - column);
    part.b.data += column * p.b.column_stride;
    part.c += column;
    part.n <= width / 2 ? multiply_columns<1>(part) : multiply_columns<2>(part);
  }
}

// Whether it is faster this way.
template <class T>
bool suits(const Product<T>& p) {
  return p.m >= 32 && p.n <= 64 && p.n >= Panel<T, 1>::width;
}

}  // namespace narrow_product

}  // namespace tessera::TESSERA_KERNELS_NAMESPACE

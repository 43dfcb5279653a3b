// SPDX-License-Identifier: Apache-2.0
// A linear map on many rows of slots, baby and giant steps in one kernel: every diagonal is read once for ROWS rows, and
// no product or rotated copy is written. A thread has one slot of ROWS rows; sums are taken in the order of numpy's.
//
//   y[r, j] = sum over g of inner_g[r, j + g],   inner_g[r, i] = sum over b of x[r, i + b] diagonal_{g,b}[i]
//
// Indices are modulo n, a power of two. A diagonal that repeats is kept as one cycle of mask + 1 numbers.

typedef unsigned long long u64;

constexpr int ROWS = 8;

struct Complex { double re, im; };

__device__ __forceinline__ void add(double& s, double t) { s += t; }
__device__ __forceinline__ void add(Complex& s, Complex t) { s.re += t.re; s.im += t.im; }
__device__ __forceinline__ double product(double a, double b) { return a * b; }
__device__ __forceinline__ Complex product(Complex a, double b) { return {a.re * b, a.im * b}; }
__device__ __forceinline__ Complex product(double a, Complex b) { return {a * b.re, a * b.im}; }
__device__ __forceinline__ Complex product(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

template <class X, class D, class Y>
__device__ __forceinline__ void linear(const X* x, Y* y, const u64* diagonals, const int* masks, const int* giants,
                                       const int* babies, int giant_count, int baby_count, int rows, int n) {
  const int j = blockIdx.x * 128 + threadIdx.x, first = blockIdx.y * ROWS;
  const int count = rows - first < ROWS ? rows - first : ROWS;
  if (j >= n) return;
  x += (size_t)first * n;
  Y total[ROWS] = {};
  for (int g = 0; g < giant_count; ++g) {
    const int at = (j + giants[g]) & (n - 1);
    Y inner[ROWS] = {};
    for (int b = 0; b < baby_count; ++b) {
      const int k = g * baby_count + b;
      const D d = ((const D*)diagonals[k])[at & masks[k]];
      const X* from = x + ((at + babies[b]) & (n - 1));
#pragma unroll
      for (int r = 0; r < ROWS; ++r)
        if (r < count) add(inner[r], product(from[(size_t)r * n], d));
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) add(total[r], inner[r]);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r)
    if (r < count) y[(size_t)(first + r) * n + j] = total[r];
}

#define MAP(name, X, D, Y)                                                                                             \
  extern "C" __global__ void name(const X* x, Y* y, const u64* diagonals, const int* masks, const int* giants,         \
                                  const int* babies, int giant_count, int baby_count, int rows, int n) {               \
    linear<X, D, Y>(x, y, diagonals, masks, giants, babies, giant_count, baby_count, rows, n);                         \
  }

MAP(linear_dd, double, double, double)
MAP(linear_dD, double, Complex, Complex)
MAP(linear_Dd, Complex, double, Complex)
MAP(linear_DD, Complex, Complex, Complex)

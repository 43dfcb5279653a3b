// SPDX-License-Identifier: Apache-2.0
// Sums modulo QP: digits times keys, and baby steps times diagonals.
//
// A decomposition is (digits, E, N) words of which the limbs of a digit's own primes are not written: they are read
// from the polynomial itself. own[j E + e] is the limb of that polynomial, or -1. A key is found by its address, the
// limb places[i E + e] of limbs[i], its digits two polynomials of limbs[i] limbs apart.

__device__ __forceinline__ u32 digit_at(const u32* digits, const u32* source, const int* own, int j, int e, int extended,
                                        u32 s) {
  const int mine = __ldg(own + j * extended + e);
  return mine >= 0 ? source[(size_t)mine * N + s] : digits[((size_t)j * extended + e) * N + s];
}

// sum over digits j of d[j] times both halves of a key
template <int BETA>
__device__ __forceinline__ void inner(const u32 (&d)[BETA], const u32* key, size_t half, u32 q, u64 (&sum)[2]) {
  u32 k[BETA][2];
#pragma unroll
  for (int j = 0; j < BETA; j++) {
    k[j][0] = __ldcs(key + 2 * j * half);
    k[j][1] = __ldcs(key + (2 * j + 1) * half);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int j = 0; j < BETA; j++) {
      sum[h] += (u64)d[j] * k[j][h];
      if (j & 1) sum[h] = fold(sum[h], q);
    }
    if (BETA & 1) sum[h] = fold(sum[h], q);
  }
}

// out[i] = phi_i(digits . key_i + (P source_0, 0)); grid (N / THREADS, E), elements are inverses: the result is scattered
template <int BETA>
__device__ __forceinline__ void switch_each(const u32* digits, const u32* polynomial, const int* own,
                                            const u64* keys, const int* limbs, const int* places, int count,
                                            const u32* source, const u32* factors, int present, const u32* elements,
                                            u32* out, i64 out_stride, int extended, const int* rows,
                                            const uint2* primes) {
  digits = operand(digits), polynomial = operand(polynomial), source = operand(source), out = operand(out);
  const int e = blockIdx.y;
  const u32 s = blockIdx.x * THREADS + threadIdx.x;
  const u32 q = primes[rows[e]].x, qi = primes[rows[e]].y;
  u32 d[BETA];
#pragma unroll
  for (int j = 0; j < BETA; j++) d[j] = digit_at(digits, polynomial, own, j, e, extended, s);
  u64 raised = 0;
  if (e < present) raised = (u64)source[(size_t)e * N + s] * __ldg(factors + e);
  for (int i = 0; i < count; i++) {
    const size_t half = (size_t)limbs[i] * N;
    const u32* key = (const u32*)keys[i] + (size_t)places[i * extended + e] * N + s;
    u64 sum[2] = {raised, 0};
    inner<BETA>(d, key, half, q, sum);
    u32* y = out + i * out_stride + (size_t)e * N + (elements ? moved(s, elements[i]) : s);
    y[0] = cadd(reduce(sum[0], q, qi), q);
    y[(size_t)extended * N] = cadd(reduce(sum[1], q, qi), q);
  }
}

// out = base + sum over i of phi_i(digits_i . key_i + (source_i0, 0)); gathered. A base or source with fewer limbs than
// E is raised by factors; one with E limbs is taken as it is. Strides of zero share a decomposition or a source.
template <int BETA>
__device__ __forceinline__ void switch_sum(const u32* digits, i64 digit_stride, const u32* polynomial,
                                           i64 polynomial_stride, const int* own, const u64* keys, const int* limbs,
                                           const int* places, int count, const u32* source, i64 source_stride,
                                           int source_limbs, const u32* base, int base_limbs, const u32* factors,
                                           const u32* elements, u32* out, int extended, const int* rows,
                                           const uint2* primes) {
  digits = operand(digits), polynomial = operand(polynomial), source = operand(source);
  base = operand(base), out = operand(out);
  const int e = blockIdx.y;
  const u32 s = blockIdx.x * THREADS + threadIdx.x;
  const u32 q = primes[rows[e]].x, qi = primes[rows[e]].y;
  u64 total[2] = {0, 0};
  u32 whole[2] = {0, 0};
  if (base && e < base_limbs) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const u32 b = base[((size_t)h * base_limbs + e) * N + s];
      if (base_limbs < extended) total[h] = (u64)b * __ldg(factors + e);
      else whole[h] = b;
    }
  }
  for (int i = 0; i < count; i++) {
    const u32 at = elements ? moved(s, elements[i]) : s;
    const size_t half = (size_t)limbs[i] * N;
    const u32* key = (const u32*)keys[i] + (size_t)places[i * extended + e] * N + at;
    u32 d[BETA];
#pragma unroll
    for (int j = 0; j < BETA; j++)
      d[j] = digit_at(digits + i * digit_stride, polynomial + i * polynomial_stride, own, j, e, extended, at);
    inner<BETA>(d, key, half, q, total);
    if (source && e < source_limbs) {
      const u32 b = source[i * source_stride + (size_t)e * N + at];
      if (source_limbs < extended) total[0] = fold(total[0] + (u64)b * __ldg(factors + e), q);
      else whole[0] = csub(whole[0] + b, q);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; h++)
    out[((size_t)h * extended + e) * N + s] = csub(cadd(reduce(total[h], q, qi), q) + whole[h], q);
}

#define SWITCH(BETA)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS) switch_each_##BETA(                                            \
      const u32* digits, const u32* polynomial, const int* own, const u64* keys, const int* limbs, const int* places,  \
      int count, const u32* source, const u32* factors, int present, const u32* elements, u32* out, i64 out_stride,    \
      int extended, const int* rows, const uint2* primes) {                                                            \
    switch_each<BETA>(digits, polynomial, own, keys, limbs, places, count, source, factors, present, elements, out,    \
                      out_stride, extended, rows, primes);                                                             \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS) switch_sum_##BETA(                                             \
      const u32* digits, i64 digit_stride, const u32* polynomial, i64 polynomial_stride, const int* own,               \
      const u64* keys, const int* limbs, const int* places, int count, const u32* source, i64 source_stride,           \
      int source_limbs, const u32* base, int base_limbs, const u32* factors, const u32* elements, u32* out,            \
      int extended, const int* rows, const uint2* primes) {                                                            \
    switch_sum<BETA>(digits, digit_stride, polynomial, polynomial_stride, own, keys, limbs, places, count, source,     \
                     source_stride, source_limbs, base, base_limbs, factors, elements, out, extended, rows, primes);   \
  }
SWITCH(1)
SWITCH(2)
SWITCH(3)
SWITCH(4)
SWITCH(5)
SWITCH(6)
SWITCH(7)
SWITCH(8)

// out = phi(factors * source) on the first limbs, zero on the others; grid (N / THREADS, E, 2), the element an inverse
extern "C" __global__ void __launch_bounds__(THREADS)
raise_limbs(const u32* source, u32* out, const u32* factors, int present, int extended, u32 element, const int* rows,
            const uint2* primes) {
  const int e = blockIdx.y, s = blockIdx.x * THREADS + threadIdx.x;
  const u32 q = primes[rows[e]].x, qi = primes[rows[e]].y;
  u32 y = 0;
  if (e < present) y = mont(operand(source)[((size_t)blockIdx.z * present + e) * N + s], __ldg(factors + e), q, qi);
  operand(out)[((size_t)blockIdx.z * extended + e) * N + (element == 1 ? s : moved(s, element))] = y;
}

// out[g] = sum over b of values[order[b]] * plains[g][index[g count + b]], where the index is not -1; G sums read each
// value once. grid (N / THREADS, E), plains are addresses
template <int G>
__device__ __forceinline__ void sums(const u32* values, const u64* plains, const int* order, const int* index,
                                     int count, u32* out, int extended, const int* rows, const uint2* primes) {
  values = operand(values), out = operand(out);
  const int e = blockIdx.y;
  const size_t s = (size_t)e * N + blockIdx.x * THREADS + threadIdx.x, half = (size_t)extended * N;
  const u32 q = primes[rows[e]].x, qi = primes[rows[e]].y;
  u64 sum[G][2];
  const u32* plain[G];
#pragma unroll
  for (int g = 0; g < G; g++) {
    sum[g][0] = sum[g][1] = 0;
    plain[g] = (const u32*)plains[g] + s;
  }
#pragma unroll 4
  for (int b = 0; b < count; b++) {
    const u32* value = values + 2 * __ldg(order + b) * half + s;
    const u32 x = value[0], y = value[half];
#pragma unroll
    for (int g = 0; g < G; g++) {
      const int d = __ldg(index + g * count + b);
      const u32 p = d >= 0 ? __ldcs(plain[g] + d * half) : 0;
      sum[g][0] = fold(sum[g][0] + (u64)x * p, q);
      sum[g][1] = fold(sum[g][1] + (u64)y * p, q);
    }
  }
#pragma unroll
  for (int g = 0; g < G; g++) {
    out[2 * g * half + s] = cadd(reduce(sum[g][0], q, qi), q);
    out[(2 * g + 1) * half + s] = cadd(reduce(sum[g][1], q, qi), q);
  }
}

#define SUMS(G)                                                                                                        \
  extern "C" __global__ void __launch_bounds__(THREADS) giant_sums_##G(                                                \
      const u32* values, const u64* plains, const int* order, const int* index, int count, u32* out, int extended,     \
      const int* rows, const uint2* primes) {                                                                          \
    sums<G>(values, plains, order, index, count, out, extended, rows, primes);                                         \
  }
SUMS(1)
SUMS(2)
SUMS(3)
SUMS(4)

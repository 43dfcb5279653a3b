// SPDX-License-Identifier: Apache-2.0
// Exact basis conversion in integers, as ckks/kernels/plans.py states it; the sources are already times (D/p_i)^-1.
//
// A conversion has k sources from limb ``first`` on and ``count`` destinations from entry ``start`` of the tables on. A
// destination's row of constants, in Montgomery form, is padded to a multiple of four words with zeros.

struct Conversion { int k, width, first, start, count, rows; };  // rows: where its rows of constants begin, in words
struct Destination { int prime, limb; };

// up to WIDTH sources stay in registers, for V positions a thread
template <int WIDTH, int V>
__device__ __forceinline__ void convert_body(const Conversion& c, const u32* src, u32* out, const Destination* dst,
                                             const u32* rows, const u32* overflow, const u32* fixed,
                                             const uint2* primes, int from, int to) {
  u32 x[WIDTH][V], e[V];
  u64 sum[V];
#pragma unroll
  for (int p = 0; p < V; p++) sum[p] = 1ull << 51;
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    const u32 f = i < c.k ? __ldg(fixed + i) : 0;
#pragma unroll
    for (int p = 0; p < V; p++) {
      x[i][p] = i < c.k ? src[(size_t)i * N + p * THREADS] : 0;
      sum[p] += (u64)x[i][p] * f;
    }
  }
#pragma unroll
  for (int p = 0; p < V; p++) e[p] = (u32)(sum[p] >> 52);
  for (int j = from; j < to; j++) {
    const Destination d = dst[j];
    const u32 q = primes[d.prime].x, qi = primes[d.prime].y, over = __ldg(overflow + j);
    const uint4* row = (const uint4*)(rows + (size_t)j * c.width);
#pragma unroll
    for (int p = 0; p < V; p++) sum[p] = (u64)e[p] * over;
#pragma unroll
    for (int i = 0; i < WIDTH; i += 4) {
      if (i < c.width) {
        const uint4 w = __ldg(row + i / 4);
#pragma unroll
        for (int p = 0; p < V; p++) {
          sum[p] = fold(sum[p] + (u64)x[i][p] * w.x + (u64)x[i + 1][p] * w.y, q);
          sum[p] = fold(sum[p] + (u64)x[i + 2][p] * w.z + (u64)x[i + 3][p] * w.w, q);
        }
      }
    }
#pragma unroll
    for (int p = 0; p < V; p++) out[(size_t)d.limb * N + p * THREADS] = cadd(reduce(sum[p], q, qi), q);
  }
}

// any number of sources, read again for each destination
__device__ __forceinline__ void convert_wide(const Conversion& c, const u32* src, u32* out, const Destination* dst,
                                             const u32* rows, const u32* overflow, const u32* fixed,
                                             const uint2* primes, int from, int to) {
  u64 total = 1ull << 51;
  for (int i = 0; i < c.k; i++) total += (u64)src[(size_t)i * N] * __ldg(fixed + i);
  const u32 e = (u32)(total >> 52);
  for (int j = from; j < to; j++) {
    const Destination d = dst[j];
    const u32 q = primes[d.prime].x, qi = primes[d.prime].y;
    const u32* row = rows + (size_t)j * c.width;
    u64 sum = (u64)e * __ldg(overflow + j);
    for (int i = 0; i < c.k; i++) sum = fold(sum + (u64)src[(size_t)i * N] * __ldg(row + i), q);
    out[(size_t)d.limb * N] = cadd(reduce(sum, q, qi), q);
  }
}

// grid (N / (V THREADS), chunks, conversions x polynomials); each block writes ``chunk`` destinations
template <int V>
__device__ __forceinline__ void convert(const u32* in, u32* out, const Conversion* conversions, int count,
                                        const Destination* destinations, const u32* rows, const u32* overflows,
                                        const u32* fixed, i64 in_stride, i64 out_stride, int chunk,
                                        const uint2* primes) {
  const Conversion c = conversions[blockIdx.z % count];
  const size_t polynomial = blockIdx.z / count;
  const int from = blockIdx.y * chunk, to = min(c.count, from + chunk);
  if (from >= to) return;
  const size_t s = (size_t)blockIdx.x * V * THREADS + threadIdx.x;
  const u32* src = operand(in) + polynomial * in_stride + (size_t)c.first * N + s;
  u32* dst = operand(out) + polynomial * out_stride + s;
  const Destination* d = destinations + c.start;
  const u32* row = rows + c.rows;
  const u32* over = overflows + c.start;
  const u32* fix = fixed + c.first;
  if (c.width <= 4) convert_body<4, V>(c, src, dst, d, row, over, fix, primes, from, to);
  else if (c.width <= 8) convert_body<8, V>(c, src, dst, d, row, over, fix, primes, from, to);
  else if (c.width <= 12) convert_body<12, V>(c, src, dst, d, row, over, fix, primes, from, to);
  else if (c.width <= 16) convert_body<16, V>(c, src, dst, d, row, over, fix, primes, from, to);
  else
    for (int p = 0; p < V; p++)
      convert_wide(c, src + p * THREADS, dst + p * THREADS, d, row, over, fix, primes, from, to);
}

extern "C" __global__ void __launch_bounds__(THREADS)
convert_one(const u32* in, u32* out, const Conversion* conversions, int count, const Destination* destinations,
            const u32* rows, const u32* overflows, const u32* fixed, i64 in_stride, i64 out_stride, int chunk,
            const uint2* primes) {
  convert<1>(in, out, conversions, count, destinations, rows, overflows, fixed, in_stride, out_stride, chunk, primes);
}

extern "C" __global__ void __launch_bounds__(THREADS)
convert_two(const u32* in, u32* out, const Conversion* conversions, int count, const Destination* destinations,
            const u32* rows, const u32* overflows, const u32* fixed, i64 in_stride, i64 out_stride, int chunk,
            const uint2* primes) {
  convert<2>(in, out, conversions, count, destinations, rows, overflows, fixed, in_stride, out_stride, chunk, primes);
}

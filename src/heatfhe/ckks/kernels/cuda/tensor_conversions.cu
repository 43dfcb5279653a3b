// SPDX-License-Identifier: Apache-2.0
// The same conversions on FP64 tensor cores, exact: a source splits into 16 and 15 bits, so that a sum of 2k products of
// at most 47 bits, k <= 21, stays below 2^52 and doubles hold it without rounding. One Montgomery step ends it.
// Compared with its integer twin, convert_one, on the device.

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

constexpr int TILE = 16;  // destinations of a tile
constexpr double WHOLE = 4503599627370496.0;  // 2^52: the mantissa of 2^52 + x is the integer x

__device__ __forceinline__ double exactly(u32 x) { return __hiloint2double(0x43300000, (int)x) - WHOLE; }

__device__ __forceinline__ void multiply_tiles(double (&c)[4], const double (&a)[4], double b0, double b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
}

// A warp converts 32 positions. Tile u, column g of a product is position 16 (u / 2) + 4 (g / 2) + 2 (u % 2) + g % 2, so
// that a lane ends with four neighbours. fragments[(tile STEPS + step) 32 + lane] are a lane's four constants.
template <int STEPS>
__device__ __forceinline__ void tensor_body(const Conversion& c, const u32* src, u32* out, const Destination* dst,
                                            const double2* fragments, const u32* overflow, const u32* fixed,
                                            const uint2* primes, int from, int to) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  u64 sum = 1ull << 51;
  for (int i = 0; i < c.k; i++) sum += (u64)src[(size_t)i * N + lane] * __ldg(fixed + i);
  const u32 e = (u32)(sum >> 52);
  double over[4][2], b[4][STEPS][2];
#pragma unroll
  for (int u = 0; u < 4; u++)
#pragma unroll
    for (int h = 0; h < 2; h++) over[u][h] = exactly(__shfl_sync(0xffffffffu, e, 16 * (u >> 1) + 4 * t + 2 * (u & 1) + h));
#pragma unroll
  for (int k = 0; k < STEPS; k++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int i = 4 * k + 2 * h + (t >> 1);
#pragma unroll
      for (int u = 0; u < 4; u++) {
        const u32 x = i < c.k ? src[(size_t)i * N + 16 * (u >> 1) + 4 * (g >> 1) + 2 * (u & 1) + (g & 1)] : 0;
        b[u][k][h] = exactly(t & 1 ? x >> 16 : x & 0xffff);
      }
    }
  for (int tile = from; tile < to; tile++) {
    double a[STEPS][4];
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
      const double2* f = fragments + ((size_t)(tile * STEPS + k) * 32 + lane) * 2;
      const double2 low = __ldg(f), high = __ldg(f + 1);
      a[k][0] = low.x; a[k][1] = low.y; a[k][2] = high.x; a[k][3] = high.y;
    }
    const int d[2] = {tile * TILE + g, tile * TILE + g + 8};
    u32 r[2][8];
    double n[2];
    uint2 q[2];
    int limb[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const bool there = d[half] < c.count;
      const Destination to_ = there ? dst[d[half]] : Destination{0, 0};
      n[half] = exactly(there ? __ldg(overflow + d[half]) : 0);
      q[half] = primes[to_.prime];
      limb[half] = there ? to_.limb : -1;
    }
#pragma unroll
    for (int u = 0; u < 4; u++) {
      double s[4];
#pragma unroll
      for (int i = 0; i < 4; i++) s[i] = over[u][i & 1] * n[i >> 1] + WHOLE;
#pragma unroll
      for (int k = 0; k < STEPS; k++) multiply_tiles(s, a[k], b[u][k][0], b[u][k][1]);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const u32 lo = (u32)__double2loint(s[i]), hi = (u32)__double2hiint(s[i]) & 0xfffff;
        const uint2 p = q[i >> 1];
        r[i >> 1][2 * u + (i & 1)] = cadd(hi - __umulhi(lo * p.y, p.x), p.x);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
      if (limb[half] >= 0) {
        u32* y = out + (size_t)limb[half] * N + 4 * t;
        *(uint4*)y = make_uint4(r[half][0], r[half][1], r[half][2], r[half][3]);
        *(uint4*)(y + 16) = make_uint4(r[half][4], r[half][5], r[half][6], r[half][7]);
      }
  }
}

// grid (N / 128, chunks, conversions x polynomials), block 128; offsets[conversion] is its first pair of constants
extern "C" __global__ void __launch_bounds__(128, 2)
convert_tensor(const u32* in, u32* out, const Conversion* conversions, int count, const Destination* destinations,
               const double2* fragments, const i64* offsets, const u32* overflows, const u32* fixed, i64 in_stride,
               i64 out_stride, int chunk, const uint2* primes) {
  const int which = blockIdx.z % count;
  const Conversion c = conversions[which];
  const size_t polynomial = blockIdx.z / count;
  const int tiles = (c.count + TILE - 1) / TILE, from = blockIdx.y * chunk, to = min(tiles, from + chunk);
  if (from >= to) return;
  const size_t s = (size_t)blockIdx.x * 128 + (threadIdx.x >> 5) * 32;
  const u32* src = operand(in) + polynomial * in_stride + (size_t)c.first * N + s;
  u32* y = operand(out) + polynomial * out_stride + s;
  const Destination* d = destinations + c.start;
  const double2* f = fragments + offsets[which];
  const u32* over = overflows + c.start;
  const u32* fix = fixed + c.first;
  switch (c.width / 4) {
    case 1: tensor_body<1>(c, src, y, d, f, over, fix, primes, from, to); break;
    case 2: tensor_body<2>(c, src, y, d, f, over, fix, primes, from, to); break;
    case 3: tensor_body<3>(c, src, y, d, f, over, fix, primes, from, to); break;
    case 4: tensor_body<4>(c, src, y, d, f, over, fix, primes, from, to); break;
    default: tensor_body<5>(c, src, y, d, f, over, fix, primes, from, to);
  }
}

#endif

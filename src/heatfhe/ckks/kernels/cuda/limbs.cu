// SPDX-License-Identifier: Apache-2.0
// Arithmetic limb by limb: sums, constants, products, and the orders of evaluations. grid (N / THREADS, limbs,
// polynomials) everywhere; rows[limb] is the prime. Constants of limbs are in Montgomery form.

#define LIMB                                                                                                           \
  const int limb = blockIdx.y, s = blockIdx.x * THREADS + threadIdx.x;                                                 \
  const u32 q = primes[rows[limb]].x;                                                                                  \
  const size_t at = ((size_t)blockIdx.z * gridDim.y + limb) * N + s;

extern "C" __global__ void add(const u32* x, const u32* y, u32* out, const int* rows, const uint2* primes) {
  LIMB
  operand(out)[at] = csub(operand(x)[at] + operand(y)[at], q);
}

extern "C" __global__ void subtract(const u32* x, const u32* y, u32* out, const int* rows, const uint2* primes) {
  LIMB
  operand(out)[at] = cadd(operand(x)[at] - operand(y)[at], q);
}

extern "C" __global__ void negate(const u32* x, u32* out, const int* rows, const uint2* primes) {
  LIMB
  operand(out)[at] = cadd(0u - operand(x)[at], q);
}

// p is added to the first polynomial, the others are copied
extern "C" __global__ void add_first(const u32* x, const u32* p, u32* out, const int* rows, const uint2* primes) {
  LIMB
  const u32 v = operand(x)[at];
  operand(out)[at] = blockIdx.z ? v : csub(v + operand(p)[at], q);
}

// a residue, as it is, is added to every value of the first polynomial
extern "C" __global__ void add_constant(const u32* x, const u32* constants, u32* out, const int* rows,
                                        const uint2* primes) {
  LIMB
  const u32 v = operand(x)[at];
  operand(out)[at] = blockIdx.z ? v : csub(v + __ldg(constants + limb), q);
}

// onto + sum of up to four terms
extern "C" __global__ void combine(const u32* onto, const u32* x0, const u32* f0, const u32* x1, const u32* f1,
                                   const u32* x2, const u32* f2, const u32* x3, const u32* f3, u32* out,
                                   const int* rows, const uint2* primes) {
  LIMB
  const u32 qi = primes[rows[limb]].y;
  u64 sum = (u64)operand(x0)[at] * __ldg(f0 + limb);
  if (x1) sum += (u64)operand(x1)[at] * __ldg(f1 + limb);
  if (x2) sum = fold(fold(sum, q) + (u64)operand(x2)[at] * __ldg(f2 + limb), q);
  if (x3) sum += (u64)operand(x3)[at] * __ldg(f3 + limb);
  u32 y = cadd(reduce(fold(sum, q), q, qi), q);
  operand(out)[at] = onto ? csub(y + operand(onto)[at], q) : y;
}

// sum of up to four products with prepared polynomials p (one limb each, shared by all polynomials of x)
extern "C" __global__ void products(const u32* onto, const u32* x0, const u32* p0, const u32* x1, const u32* p1,
                                    const u32* x2, const u32* p2, const u32* x3, const u32* p3, u32* out,
                                    const int* rows, const uint2* primes) {
  LIMB
  const u32 qi = primes[rows[limb]].y;
  const size_t plain = (size_t)limb * N + s;
  u64 sum = (u64)operand(x0)[at] * operand(p0)[plain];
  if (x1) sum += (u64)operand(x1)[at] * operand(p1)[plain];
  if (x2) sum = fold(fold(sum, q) + (u64)operand(x2)[at] * operand(p2)[plain], q);
  if (x3) sum += (u64)operand(x3)[at] * operand(p3)[plain];
  u32 y = cadd(reduce(fold(sum, q), q, qi), q);
  operand(out)[at] = onto ? csub(y + operand(onto)[at], q) : y;
}

// Sum over up to four pairs ((b, a), (b', a')) of (b b', b a' + a b', a a'), added to onto; squares are 2^64 mod q.
// grid (N / THREADS, limbs)
extern "C" __global__ void tensor(const u32* onto, const u32* x0, const u32* y0, const u32* x1, const u32* y1,
                                  const u32* x2, const u32* y2, const u32* x3, const u32* y3, u32* out,
                                  const uint2* powers, const int* rows, const uint2* primes) {
  LIMB
  const u32 qi = primes[rows[limb]].y, square = powers[rows[limb]].x;
  const size_t half = (size_t)gridDim.y * N;
  const u32* x[4] = {operand(x0), operand(x1), operand(x2), operand(x3)};
  const u32* y[4] = {operand(y0), operand(y1), operand(y2), operand(y3)};
  u64 sum[3] = {0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if (!x[i]) break;
    const u32 b = x[i][at], a = x[i][half + at], c = y[i][at], d = y[i][half + at];
    sum[0] = fold(sum[0] + (u64)b * c, q);
    sum[1] = fold(sum[1] + (u64)b * d + (u64)a * c, q);
    sum[2] = fold(sum[2] + (u64)a * d, q);
  }
#pragma unroll
  for (int k = 0; k < 3; k++) {
    u32 z = mont(cadd(reduce(sum[k], q, qi), q), square, q, qi);
    if (onto) z = csub(z + operand(onto)[k * half + at], q);
    operand(out)[k * half + at] = z;
  }
}

extern "C" __global__ void automorphism(const u32* x, u32* out, u32 element) {
  const u32 s = blockIdx.x * THREADS + threadIdx.x;
  const size_t limb = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * N;
  operand(out)[limb + s] = operand(x)[limb + moved(s, element)];
}

// between natural order and ours, which is its own inverse
extern "C" __global__ void reorder(const u32* x, u32* out) {
  const u32 s = blockIdx.x * THREADS + threadIdx.x;
  const size_t limb = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * N;
  operand(out)[limb + s] = operand(x)[limb + reversed(s)];
}

// Slots, repeated, at the odd powers of zeta they belong to, with their conjugates; grid (N / 2 / THREADS or 1)
extern "C" __global__ void place_slots(const double2* slots, double2* points, const int* places, int period) {
  const int j = blockIdx.x * THREADS + threadIdx.x;
  if (j >= N / 2) return;
  const double2 z = slots[j & (period - 1)];
  const int place = places[j];
  points[place] = z;
  points[N - 1 - place] = make_double2(z.x, -z.y);
}

// A matrix between two layouts of slots: the row and the column of its entries that each slot stands for, -1 for padding
struct SlotMatrix {
  const double* entries;
  const int *rows, *columns;
  int width, ahead;
  double real, imaginary;  // of the factor
};

// Diagonals of a sum of matrices as place_slots has slots: for each turn (giant, baby) the entries in the row of slot
// s + baby and the column of slot s - giant. grid (N / 2 / THREADS or 1, turns)
extern "C" __global__ void place_diagonals(const SlotMatrix* matrices, int count, const uint2* turns, double2* points,
                                           const int* places, int period) {
  const int j = blockIdx.x * THREADS + threadIdx.x;
  if (j >= N / 2) return;
  const uint2 turn = turns[blockIdx.y];
  double2 z = make_double2(0.0, 0.0);
  for (int k = 0; k < count; k++) {
    const SlotMatrix m = matrices[k];
    const int row = m.rows[(j + turn.y + m.ahead) & (period - 1)], column = m.columns[(j - turn.x) & (period - 1)];
    if (row >= 0 && column >= 0) {
      const double entry = m.entries[(size_t)row * m.width + column];
      z.x += m.real * entry;
      z.y += m.imaginary * entry;
    }
  }
  points += (size_t)blockIdx.y * N;
  const int place = places[j];
  points[place] = z;
  points[N - 1 - place] = make_double2(z.x, -z.y);
}

// The integers nearest to scale times the real part of spectrum / twist; scale holds 1/N. grid (N / THREADS, spectra)
extern "C" __global__ void round_spectrum(const double2* spectrum, const double2* twist, i64* out, double scale) {
  const int s = blockIdx.x * THREADS + threadIdx.x;
  const size_t at = (size_t)blockIdx.y * N + s;
  const double2 f = spectrum[at], t = twist[s];
  out[at] = (i64)rint((f.x * t.x + f.y * t.y) * scale);
}

// limbs from ``first`` on of polynomials of ``whole`` limbs
extern "C" __global__ void copy_limbs(const u32* x, u32* out, int first, int whole) {
  const u32 s = blockIdx.x * THREADS + threadIdx.x;
  const size_t from = (size_t)blockIdx.z * whole + first + blockIdx.y, to = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
  operand(out)[to * N + s] = operand(x)[from * N + s];
}

// The addresses of this play's operands, from the next line of a ring that the host writes into the cells that recorded
// kernels read; one block of 32 threads, two cells each. turn counts the plays.
extern "C" __global__ void deliver(const u64* ring, u64* cells, u32* turn, int lines) {
  const u32 line = *turn % lines, cell = 2 * threadIdx.x;
  cells[cell] = ring[line * 64 + cell];
  cells[cell + 1] = ring[line * 64 + cell + 1];
  __syncwarp();
  if (threadIdx.x == 31) *turn = line + 1;
}

// SPDX-License-Identifier: Apache-2.0
// Negacyclic transforms in two passes: columns of length M, then rows of 256, sixteen values of each in registers.
//
// Stage k of a group of values multiplies by the twiddles of node (node << k) + h of a binary tree: psi^brv(node). A
// thread's first stages start at the root of its column or row, its last ones at a node of its own. Twiddles of nodes
// below 16 M (``head``) are read as they are. For the last four stages of a row only the leftmost twiddle of each stage
// is read (``tail``), the others follow by constants of the prime (``steps``, Shoup): four words for sixteen values.
// Forward values stay in [0, 2q) between stages, inverse ones are canonical.

__device__ __forceinline__ void butterfly(u32& x, u32& y, u32 w, u32 q, u32 qi) {
  u32 t = mont(y, w, q, qi), a = csub(x, q);
  x = a + t;
  y = a - t + q;
}

__device__ __forceinline__ void inverse_butterfly(u32& x, u32& y, u32 w, u32 q, u32 qi) {
  u32 d = x - y + q;
  x = csub(x + y, q);
  y = mont(d, w, q, qi);
}

template <int K, int L, bool FORWARD>
__device__ __forceinline__ void stage(u32 (&v)[1 << L], const u32* twiddles, u32 q, u32 qi) {
  constexpr int D = 1 << (L - 1 - K);
#pragma unroll
  for (int h = 0; h < (1 << K); h++) {
    u32 w = __ldg(twiddles + h);
#pragma unroll
    for (int j = 0; j < D; j++) {
      if constexpr (FORWARD) butterfly(v[2 * D * h + j], v[2 * D * h + j + D], w, q, qi);
      else inverse_butterfly(v[2 * D * h + j], v[2 * D * h + j + D], w, q, qi);
    }
  }
}

template <int K, bool FORWARD>
__device__ __forceinline__ void last_stage(u32 (&v)[16], u32 first, const uint2* steps, u32 q, u32 qi) {
  constexpr int D = 8 >> K;
#pragma unroll
  for (int h = 0; h < (1 << K); h++) {
    u32 w = h ? csub(shoup(first, __ldg(steps + h), q), q) : first;
#pragma unroll
    for (int j = 0; j < D; j++) {
      if constexpr (FORWARD) butterfly(v[2 * D * h + j], v[2 * D * h + j + D], w, q, qi);
      else inverse_butterfly(v[2 * D * h + j], v[2 * D * h + j + D], w, q, qi);
    }
  }
}

// stages FROM..L-1 below a node
template <int FROM, int L>
__device__ __forceinline__ void descend(u32 (&v)[1 << L], const u32* head, u32 node, u32 q, u32 qi) {
  if constexpr (FROM < L) {
    stage<FROM, L, true>(v, head + (node << FROM), q, qi);
    descend<FROM + 1, L>(v, head, node, q, qi);
  }
}

template <int FROM, int L>
__device__ __forceinline__ void ascend(u32 (&v)[1 << L], const u32* head, u32 node, u32 q, u32 qi) {
  if constexpr (FROM < L) {
    ascend<FROM + 1, L>(v, head, node, q, qi);
    stage<FROM, L, false>(v, head + (node << FROM), q, qi);
  }
}

constexpr int LOGR = LOGM < 4 ? LOGM : 4;  // a thread's values of a column
constexpr int R = 1 << LOGR;
constexpr int LOGT = LOGM - LOGR;  // threads of a column
constexpr int T = 1 << LOGT;
constexpr int COLUMNS = THREADS / T;
constexpr int ROWS = M < 16 ? M : 16;  // rows of a block
static_assert(LOGN >= 8 && LOGT <= 4, "rings of 2^8 to 2^16");

// grid (T, limbs, polynomials), block THREADS
extern "C" __global__ void __launch_bounds__(THREADS, 4)
ntt_columns(const u32* in, u32* out, const Task* tasks, i64 in_stride, i64 out_stride, const uint2* primes,
            const u32* heads) {
  __shared__ u32 shared[(M + M / 16 + 1) * COLUMNS];
  const Task task = tasks[blockIdx.y];
  const u32 q = primes[task.prime].x, qi = primes[task.prime].y;
  const u32* head = heads + (size_t)task.prime * (N / 16);
  const int c = threadIdx.x % COLUMNS, a = threadIdx.x / COLUMNS;
  const int column = blockIdx.x * COLUMNS + c;
  const u32* x = operand(in) + blockIdx.z * in_stride + (size_t)task.in * N + column;
  u32* y = operand(out) + blockIdx.z * out_stride + (size_t)task.out * N + column;
  u32 v[R];
#pragma unroll
  for (int i = 0; i < R; i++) v[i] = x[(a + T * i) * 256];
  descend<0, LOGR>(v, head, 1, q, qi);
  if constexpr (T > 1) {
#pragma unroll
    for (int i = 0; i < R; i++) {
      int row = a + T * i;
      shared[(row + (row >> 4)) * COLUMNS + c] = v[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R; i++) v[i] = shared[(17 * a + i) * COLUMNS + c];
    descend<LOGR - LOGT, LOGR>(v, head, T + a, q, qi);
#pragma unroll
    for (int i = 0; i < R; i++) y[(16 * a + i) * 256] = v[i];
  } else {
#pragma unroll
    for (int i = 0; i < R; i++) y[i * 256] = v[i];
  }
}

// the row transform of one thread: sixteen values t, t + 16, ... in; the same places, canonical, out
__device__ __forceinline__ void forward_row(u32 (&v)[16], u32* shared, int row, int t, int prime, u32 q, u32 qi,
                                            const u32* heads, const u32* tails, const uint2* steps) {
  descend<0, 4>(v, heads + (size_t)prime * (N / 16), M + row, q, qi);
  const u32* tail = tails + (size_t)prime * (N / 4) + 16 * row + t;
  const uint2* step = steps + prime * 8;
  u32 first[4];
#pragma unroll
  for (int k = 0; k < 4; k++) first[k] = __ldg(tail + k * (N / 16));
#pragma unroll
  for (int i = 0; i < 16; i++) shared[17 * i + t] = v[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = shared[17 * t + i];
  last_stage<0, true>(v, first[0], step, q, qi);
  last_stage<1, true>(v, first[1], step, q, qi);
  last_stage<2, true>(v, first[2], step, q, qi);
  last_stage<3, true>(v, first[3], step, q, qi);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i++) shared[17 * t + i] = csub(v[i], q);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = shared[17 * i + t];
}

// grid (M / ROWS, limbs, polynomials), block 16 ROWS
extern "C" __global__ void __launch_bounds__(THREADS, 4)
ntt_rows(const u32* in, u32* out, const Task* tasks, i64 in_stride, i64 out_stride, const uint2* primes,
         const u32* heads, const u32* tails, const uint2* steps) {
  __shared__ u32 shared[ROWS * 272];
  const Task task = tasks[blockIdx.y];
  const u32 q = primes[task.prime].x, qi = primes[task.prime].y;
  const int t = threadIdx.x & 15, row = blockIdx.x * ROWS + (threadIdx.x >> 4);
  const u32* x = operand(in) + blockIdx.z * in_stride + (size_t)task.in * N + row * 256 + t;
  u32* y = operand(out) + blockIdx.z * out_stride + (size_t)task.out * N + row * 256 + t;
  u32 v[16];
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = x[16 * i];
  forward_row(v, shared + (threadIdx.x >> 4) * 272, row, t, task.prime, q, qi, heads, tails, steps);
#pragma unroll
  for (int i = 0; i < 16; i++) y[16 * i] = v[i];
}

// The end of a division: y = x_kept * lift - remainder, moved by an automorphism where ``elements`` are given (the
// inverse of element z / 2 for polynomial z). task.extra is the kept limb of x, or -1 for a prime that enters. What is
// asked for beyond that: twice y, and a residue of each limb added to the first of two polynomials.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
ntt_rows_divide(const u32* in, u32* out, const Task* tasks, i64 in_stride, i64 out_stride, const u32* kept,
                i64 kept_stride, const uint2* lifts, const u32* elements, const u32* constants, int twice,
                const uint2* primes, const u32* heads, const u32* tails, const uint2* steps) {
  __shared__ u32 shared[ROWS * 272];
  const Task task = tasks[blockIdx.y];
  const u32 q = primes[task.prime].x, qi = primes[task.prime].y;
  const int t = threadIdx.x & 15, row = blockIdx.x * ROWS + (threadIdx.x >> 4);
  const u32* r = operand(in) + blockIdx.z * in_stride + (size_t)task.in * N + row * 256 + t;
  u32* y = operand(out) + blockIdx.z * out_stride + (size_t)task.out * N;
  u32 v[16];
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = r[16 * i];
  forward_row(v, shared + (threadIdx.x >> 4) * 272, row, t, task.prime, q, qi, heads, tails, steps);
  if (task.extra >= 0) {
    const u32* x = operand(kept) + blockIdx.z * kept_stride + (size_t)task.extra * N + row * 256 + t;
    const uint2 lift = lifts[blockIdx.y];
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = cadd(csub(shoup(x[16 * i], lift, q), q) - v[i], q);
  } else {
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = cadd(0u - v[i], q);
  }
  if (twice) {
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = csub(v[i] + v[i], q);
  }
  if (constants && !(blockIdx.z & 1)) {
    const u32 c = constants[blockIdx.y];
#pragma unroll
    for (int i = 0; i < 16; i++) v[i] = csub(v[i] + c, q);
  }
  if (elements) {
    const u32 g = elements[blockIdx.z >> 1];
#pragma unroll
    for (int i = 0; i < 16; i++) y[moved(row * 256 + t + 16 * i, g)] = v[i];
  } else {
#pragma unroll
    for (int i = 0; i < 16; i++) y[row * 256 + t + 16 * i] = v[i];
  }
}

// grid (M / ROWS, limbs, polynomials), block 16 ROWS
extern "C" __global__ void __launch_bounds__(THREADS, 4)
intt_rows(const u32* in, u32* out, const Task* tasks, i64 in_stride, i64 out_stride, const uint2* primes,
          const u32* heads, const u32* tails, const uint2* steps) {
  __shared__ u32 all[ROWS * 272];
  const Task task = tasks[blockIdx.y];
  const u32 q = primes[task.prime].x, qi = primes[task.prime].y;
  const int t = threadIdx.x & 15, row = blockIdx.x * ROWS + (threadIdx.x >> 4);
  u32* shared = all + (threadIdx.x >> 4) * 272;
  const u32* x = operand(in) + blockIdx.z * in_stride + (size_t)task.in * N + row * 256 + t;
  u32* y = operand(out) + blockIdx.z * out_stride + (size_t)task.out * N + row * 256 + t;
  const u32* tail = tails + (size_t)task.prime * (N / 4) + 16 * row + t;
  const uint2* step = steps + task.prime * 8;
  u32 v[16], first[4];
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = x[16 * i];
#pragma unroll
  for (int k = 0; k < 4; k++) first[k] = __ldg(tail + k * (N / 16));
#pragma unroll
  for (int i = 0; i < 16; i++) shared[17 * i + t] = v[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = shared[17 * t + i];
  __syncwarp();
  last_stage<3, false>(v, first[3], step, q, qi);
  last_stage<2, false>(v, first[2], step, q, qi);
  last_stage<1, false>(v, first[1], step, q, qi);
  last_stage<0, false>(v, first[0], step, q, qi);
#pragma unroll
  for (int i = 0; i < 16; i++) shared[17 * t + i] = v[i];
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i++) v[i] = shared[17 * i + t];
  ascend<0, 4>(v, heads + (size_t)task.prime * (N / 16), M + row, q, qi);
#pragma unroll
  for (int i = 0; i < 16; i++) y[16 * i] = v[i];
}

// grid (T, limbs, polynomials), block THREADS; the result times the constant of its limb
extern "C" __global__ void __launch_bounds__(THREADS, 4)
intt_columns(const u32* in, u32* out, const Task* tasks, i64 in_stride, i64 out_stride, const uint2* scales,
             const uint2* primes, const u32* heads) {
  __shared__ u32 shared[(M + M / 16 + 1) * COLUMNS];
  const Task task = tasks[blockIdx.y];
  const u32 q = primes[task.prime].x, qi = primes[task.prime].y;
  const uint2 scale = scales[blockIdx.y];
  const u32* head = heads + (size_t)task.prime * (N / 16);
  const int c = threadIdx.x % COLUMNS, a = threadIdx.x / COLUMNS;
  const int column = blockIdx.x * COLUMNS + c;
  const u32* x = operand(in) + blockIdx.z * in_stride + (size_t)task.in * N + column;
  u32* y = operand(out) + blockIdx.z * out_stride + (size_t)task.out * N + column;
  u32 v[R];
  if constexpr (T > 1) {
#pragma unroll
    for (int i = 0; i < R; i++) v[i] = x[(16 * a + i) * 256];
    ascend<LOGR - LOGT, LOGR>(v, head, T + a, q, qi);
#pragma unroll
    for (int i = 0; i < R; i++) shared[(17 * a + i) * COLUMNS + c] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R; i++) {
      int row = a + T * i;
      v[i] = shared[(row + (row >> 4)) * COLUMNS + c];
    }
  } else {
#pragma unroll
    for (int i = 0; i < R; i++) v[i] = x[i * 256];
  }
  ascend<0, LOGR>(v, head, 1, q, qi);
#pragma unroll
  for (int i = 0; i < R; i++) y[(a + T * i) * 256] = csub(shoup(v[i], scale, q), q);
}

// Signed integers |c| < 2^62 modulo the prime of each limb. grid (N / THREADS, limbs, polynomials); powers are 2^64 and
// 2^32 mod q, or those times 2^32 for residues in Montgomery form
extern "C" __global__ void residues(const i64* coefficients, u32* out, const Task* tasks, const uint2* primes,
                                    const uint2* powers) {
  const Task task = tasks[blockIdx.y];
  const u32 q = primes[task.prime].x, qi = primes[task.prime].y;
  const uint2 power = powers[task.prime];
  const int s = blockIdx.x * THREADS + threadIdx.x;
  const i64 c = operand(coefficients)[(size_t)blockIdx.z * N + s];
  const u64 m = c < 0 ? 0 - (u64)c : (u64)c;
  u32 r = csub(mont((u32)(m >> 32), power.x, q, qi) + mont((u32)m, power.y, q, qi), q);
  operand(out)[((size_t)blockIdx.z * gridDim.y + task.out) * N + s] = c < 0 ? cadd(0u - r, q) : r;
}

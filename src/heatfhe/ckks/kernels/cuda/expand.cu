// SPDX-License-Identifier: Apache-2.0
// Uniform polynomials from public seeds, as ckks/expand.py defines them: SHAKE128 of (head, prime, attempt 0, chunk).

__device__ const u64 ROUND[24] = {
    0x0000000000000001ull, 0x0000000000008082ull, 0x800000000000808aull, 0x8000000080008000ull, 0x000000000000808bull,
    0x0000000080000001ull, 0x8000000080008081ull, 0x8000000000008009ull, 0x000000000000008aull, 0x0000000000000088ull,
    0x0000000080008009ull, 0x000000008000000aull, 0x000000008000808bull, 0x800000000000008bull, 0x8000000000008089ull,
    0x8000000000008003ull, 0x8000000000008002ull, 0x8000000000000080ull, 0x000000000000800aull, 0x800000008000000aull,
    0x8000000080008081ull, 0x8000000000008080ull, 0x0000000080000001ull, 0x8000000080008008ull};

__device__ __forceinline__ u64 rotl(u64 x, int by) { return by ? (x << by) | (x >> (64 - by)) : x; }

// Keccak-f[1600] of FIPS 202; lane (x, y) is a[x + 5 y]
__device__ __forceinline__ void keccak(u64 (&a)[25]) {
  constexpr int OFFSET[25] = {0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14};
  for (int round = 0; round < 24; round++) {
    u64 c[5], b[25];
#pragma unroll
    for (int x = 0; x < 5; x++) c[x] = a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20];
#pragma unroll
    for (int x = 0; x < 5; x++) {
      const u64 d = c[(x + 4) % 5] ^ rotl(c[(x + 1) % 5], 1);
#pragma unroll
      for (int y = 0; y < 5; y++) b[y + 5 * ((2 * x + 3 * y) % 5)] = rotl(a[x + 5 * y] ^ d, OFFSET[x + 5 * y]);
    }
#pragma unroll
    for (int y = 0; y < 5; y++)
#pragma unroll
      for (int x = 0; x < 5; x++) a[x + 5 * y] = b[x + 5 * y] ^ (~b[(x + 1) % 5 + 5 * y] & b[(x + 2) % 5 + 5 * y]);
    a[0] ^= ROUND[round];
  }
}

constexpr int CHUNK = 4096;  // words of one hash
constexpr int LANES = 21;    // of a block of SHAKE128
constexpr int CHUNKS = N < CHUNK ? 1 : N / CHUNK;
constexpr int CHUNK_WORDS = N < CHUNK ? N : CHUNK;

// One thread per chunk of one limb; blocks are the padded inputs of the hash, one for each (limb, chunk), 21 lanes each.
// A word above the largest multiple of the prime is listed in rejected (count, then pairs limb, position): the host
// draws it again. Values go to bit-reversed places.
extern "C" __global__ void __launch_bounds__(64)
expand(const u64* blocks, u32* out, u32* rejected, int limit, int total, const int* rows, const uint2* primes,
       const uint2* powers) {
  const int index = blockIdx.x * 64 + threadIdx.x;
  if (index >= total) return;
  const int limb = index / CHUNKS, chunk = index % CHUNKS, prime = rows[limb];
  const u32 q = primes[prime].x, qi = primes[prime].y;
  const uint2 power = powers[prime];
  const u64 last = 0ull - 1 - (0ull - q) % q;  // floor(2^64 / q) q - 1: 2^64 mod q is (2^64 - q) mod q
  u64 a[25];
#pragma unroll
  for (int i = 0; i < 25; i++) a[i] = i < LANES ? blocks[(size_t)index * LANES + i] : 0;
  u32* y = operand(out) + (size_t)limb * N;
  for (int done = 0; done < CHUNK_WORDS; done += LANES) {
    keccak(a);
#pragma unroll
    for (int i = 0; i < LANES; i++) {
      const int j = done + i;
      if (j < CHUNK_WORDS) {
        const u64 w = a[i];
        const u32 s = chunk * CHUNK + j;
        y[reversed(s)] = csub(mont((u32)(w >> 32), power.x, q, qi) + mont((u32)w, power.y, q, qi), q);
        if (w > last) {
          const u32 place = atomicAdd(rejected, 1u);
          if ((int)place < limit) {
            rejected[1 + 2 * place] = limb;
            rejected[2 + 2 * place] = s;
          }
        }
      }
    }
  }
}

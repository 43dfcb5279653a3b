// SPDX-License-Identifier: Apache-2.0
// Arithmetic of residues modulo primes q < 2^31, and the order of evaluations.
//
// A prime is (q, q^-1 mod 2^32). A constant in Montgomery form is w 2^32 mod q; a Shoup constant is (w, floor(w 2^32/q)).
// LOGN is given when the module is compiled; N = 2^LOGN values of a limb are M rows of 256.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

constexpr int N = 1 << LOGN;
constexpr int LOGM = LOGN - 8;
constexpr int M = 1 << LOGM;
constexpr int THREADS = 256;

// Where data are. A recorded operation does not know the addresses of its operands: it is given those of cells, made odd,
// that hold them when it is played (see ``deliver``). Data pointers of every kernel go through here; NAMED compiles the
// kernels that recordings use, since a pointer that was read takes registers that a parameter does not. The compiler is
// told that it points to global memory.
template <class T>
__device__ __forceinline__ T* operand(T* p) {
#ifdef NAMED
  u64 a = (u64)p;
  if (a & 1) a = *(const u64*)__cvta_global_to_generic(a - 1);
  return (T*)__cvta_global_to_generic(a);
#else
  return p;
#endif
}

struct Task { int prime, in, out, extra; };  // one limb of a transform: its prime, where it is read and written

__device__ __forceinline__ u32 csub(u32 x, u32 q) { return __viaddmin_u32(x, 0u - q, x); }  // [0, 2q) to [0, q)
__device__ __forceinline__ u32 cadd(u32 x, u32 q) { return __viaddmin_u32(x, q, x); }       // (-q, q) to [0, q)
// x w modulo q in [0, 2q), for any 32-bit x
__device__ __forceinline__ u32 shoup(u32 x, uint2 w, u32 q) { return x * w.x - __umulhi(x, w.y) * q; }
// p / 2^32 modulo q in (-q, q), for p < q 2^32
__device__ __forceinline__ u32 reduce(u64 p, u32 q, u32 qi) { return (u32)(p >> 32) - __umulhi((u32)p * qi, q); }
// x w / 2^32 modulo q, canonical, for x < 2^32 and w < q
__device__ __forceinline__ u32 mont(u32 x, u32 w, u32 q, u32 qi) { return cadd(reduce((u64)x * w, q, qi), q); }
// keeps a sum below q 2^32: any sum below 2q 2^32 may be folded
__device__ __forceinline__ u64 fold(u64 sum, u32 q) { return ((u64)csub((u32)(sum >> 32), q) << 32) | (u32)sum; }

// Position s holds the value at psi^(2 brv(s) + 1): the order a forward transform leaves. An automorphism X -> X^g
// moves lines of 32 positions as a whole.
__device__ __forceinline__ u32 reversed(u32 s) { return __brev(s) >> (32 - LOGN); }
__device__ __forceinline__ u32 moved(u32 s, u32 g) { return reversed(((g * (2 * reversed(s) + 1)) & (2 * N - 1)) >> 1); }

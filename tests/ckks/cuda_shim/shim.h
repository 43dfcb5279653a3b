// SPDX-License-Identifier: Apache-2.0
// The part of CUDA that our kernels use, for a C++ compiler: the threads of a block are fibres that take turns at each
// barrier (or run one after the other where there is none), and so do blocks. Slow, exact, and without a GPU.
#pragma once
#include <setjmp.h>
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct double2 { double x, y; };
inline double2 make_double2(double x, double y) { return {x, y}; }
struct Index { unsigned x, y, z; };
static Index threadIdx, blockIdx, gridDim;

namespace shim {
// A fibre starts on a stack of its own and then runs one thread of every block; switches are long jumps, which, unlike
// swapcontext, ask nothing of the system.
struct Fibre { jmp_buf here; std::vector<char> stack; bool begun, done; };
static std::vector<Fibre*> fibres;
static jmp_buf home;
static unsigned current;
static void (*entry)(void*);
static void* entry_argument;

static void give_way() {
  Fibre* me = fibres[current];
  if (_setjmp(me->here) == 0) _longjmp(home, 1);
}

static void start() {
  for (;;) {
    entry(entry_argument);
    fibres[current]->done = true;
    give_way();
  }
}

static void turn(unsigned i) {
  Fibre* f = fibres[i];
  current = i;
  threadIdx = {i, 0, 0};
  if (_setjmp(home)) return;
  if (f->begun) _longjmp(f->here, 1);
  f->begun = true;
  ucontext_t context;
  getcontext(&context);
  f->stack.resize(64 << 10);
  context.uc_stack.ss_sp = f->stack.data();
  context.uc_stack.ss_size = f->stack.size();
  context.uc_link = nullptr;
  makecontext(&context, start, 0);
  setcontext(&context);
}

static void run_block(unsigned threads, bool barriers) {
  if (!barriers) {
    for (unsigned i = 0; i < threads; i++) {
      threadIdx = {i, 0, 0};
      entry(entry_argument);
    }
    return;
  }
  while (fibres.size() < threads) fibres.push_back(new Fibre{});
  for (unsigned i = 0; i < threads; i++) fibres[i]->done = false;
  for (bool left = true; left;) {
    left = false;
    for (unsigned i = 0; i < threads; i++) {
      if (!fibres[i]->done) turn(i);
      left = left || !fibres[i]->done;
    }
  }
}

static void barrier() { give_way(); }

template <class... A, size_t... I>
void launch(void (*kernel)(A...), const unsigned* grid, unsigned threads, bool barriers, void** args,
            std::index_sequence<I...>) {
  struct Call { void (*kernel)(A...); void** args; } call{kernel, args};
  entry = [](void* p) { Call* c = (Call*)p; c->kernel(*(A*)c->args[I]...); };
  entry_argument = &call;
  gridDim = {grid[0], grid[1], grid[2]};
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        run_block(threads, barriers);
      }
}

template <class... A>
void launch(void (*kernel)(A...), const unsigned* grid, unsigned threads, bool barriers, void** args) {
  launch(kernel, grid, threads, barriers, args, std::index_sequence_for<A...>{});
}
}  // namespace shim

inline void __syncthreads() { shim::barrier(); }
inline void __syncwarp() { shim::barrier(); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)(((uint64_t)a * b) >> 32); }
inline uint32_t __viaddmin_u32(uint32_t a, uint32_t b, uint32_t c) { return std::min<uint32_t>(a + b, c); }
inline uint32_t __brev(uint32_t x) {
  uint32_t r = 0;
  for (int i = 0; i < 32; i++) r |= ((x >> i) & 1) << (31 - i);
  return r;
}
inline void* __cvta_global_to_generic(size_t address) { return (void*)address; }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
using std::min;
inline unsigned atomicAdd(unsigned* p, unsigned by) { unsigned old = *p; *p += by; return old; }

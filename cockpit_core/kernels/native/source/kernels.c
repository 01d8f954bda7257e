// All kernels for one instruction set, in single and in double precision. Compiled once per instruction set, with
// LEVEL (its name) and BYTES (of one vector) given; the names of the functions end in both: reduce_block_f32_avx2.
//
// No allocation, no library, no threads: the caller gives memory and runs shares of the work in threads of its own, or of
// whoever has some (walking.h).
// Compiled with -ffp-contract=off, because the rounding rule of the bins allows no fused multiply-add; sums that no bin
// depends on ask for one with FMA.
#include <stddef.h>
#include <stdint.h>

#define JOIN_(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define NAME(name) JOIN(name, TYPE, LEVEL)

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")

#if defined(__FMA__) || defined(__aarch64__)
#define FMA(a, b, c) __builtin_elementwise_fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

#if defined(__AVX512F__) || defined(__aarch64__)
#define REGISTERS 18  // of 32, for sums that are in flight
#else
#define REGISTERS 12  // of 16
#endif

#define TABLES 4

// What several threads do together: items [count, 3] of a job and its samples, from the first to before the last. `next` and
// `arrived` begin at 0. `room`: so many numbers for each thread.
typedef struct {
  int64_t next, arrived, count;
  const int64_t *items, *jobs;
  const double *scales;
  double *norms, *dots;
  void *room;
  int64_t room_size;
} Work;

INLINE const int64_t *take_item(Work *work) {
  int64_t k = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED);
  return k < work->count ? work->items + 3 * k : NULL;
}

#define TYPE f32
#define REAL float
#define WHOLE int32_t
#define UNSIGNED uint32_t
#define MANTISSA 23
#define BIAS 127
#define LANES (BYTES / 4)
#include "body.h"
#undef TYPE
#undef REAL
#undef WHOLE
#undef UNSIGNED
#undef MANTISSA
#undef BIAS
#undef LANES

#define TYPE f64
#define REAL double
#if __SIZEOF_LONG__ == 8
#define WHOLE long  // what comparing two vectors of doubles gives
#else
#define WHOLE long long
#endif
#define UNSIGNED uint64_t
#define MANTISSA 52
#define BIAS 1023
#define LANES (BYTES / 8)
#include "body.h"

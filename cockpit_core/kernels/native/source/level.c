// Which instruction set does this processor have (and the operating system save)? 0 plain, 1 AVX2, 2 AVX-512.
#include <stdint.h>
#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

// The compiler may call these two; the kernels are linked without a library.
#include <stddef.h>
__attribute__((visibility("hidden"))) void *memset(void *to, int value, size_t size) {
  for (volatile unsigned char *p = to; size; size--) *p++ = (unsigned char)value;
  return to;
}
__attribute__((visibility("hidden"))) void *memcpy(void *restrict to, const void *restrict from, size_t size) {
  const volatile unsigned char *q = from;
  for (volatile unsigned char *p = to; size; size--) *p++ = *q++;
  return to;
}

#if defined(__x86_64__)
static void ask(uint32_t leaf, uint32_t part, uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d) {
  __asm__ volatile("cpuid" : "=a"(*a), "=b"(*b), "=c"(*c), "=d"(*d) : "a"(leaf), "c"(part));
}

EXPORT int cockpit_level(void) {
  uint32_t a, b, c, d;
  ask(0, 0, &a, &b, &c, &d);
  if (a < 7) return 0;
  ask(1, 0, &a, &b, &c, &d);
  uint32_t fma = c >> 12 & 1, saves = c >> 27 & 1, avx = c >> 28 & 1, movbe = c >> 22 & 1, popcnt = c >> 23 & 1;
  if (!(fma && saves && avx && movbe && popcnt)) return 0;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 6) != 6) return 0;  // the system does not save the 256-bit registers
  ask(0x80000001, 0, &a, &b, &c, &d);
  uint32_t lzcnt = c >> 5 & 1;
  ask(7, 0, &a, &b, &c, &d);
  uint32_t bmi = b >> 3 & 1, avx2 = b >> 5 & 1, bmi2 = b >> 8 & 1;
  if (!(lzcnt && bmi && avx2 && bmi2)) return 0;
  uint32_t wide = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;  // F, DQ, CD, BW, VL
  return (b & wide) == wide && (low & 0xE0) == 0xE0 ? 2 : 1;
}
#else
EXPORT int cockpit_level(void) { return 0; }  // every arm64 processor has NEON: there is one set only
#endif

#if defined(_WIN32)
// What the runtime library would bring, which the kernels do without.
int _fltused = 0;
int DllMainCRTStartup(void *module, unsigned reason, void *reserved) { return 1; }
#endif

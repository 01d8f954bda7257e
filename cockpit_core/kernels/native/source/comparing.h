// The Gram matrix of a few samples, K_nm = g_n . g_m, from pieces of their gradients while those lie in the first cache.
// Blocks of samples by samples are summed in registers; only what is not above the diagonal is.

#define MOST_COMPARED 16
#define KEPT 24  // vectors of one piece of a gradient
#define LONGEST 256  // numbers in a row whose sums stay in the type itself
#if REGISTERS == 18
#define BLOCK 4
#else
#define BLOCK 2
#endif
#define BESIDE 4

typedef struct {
  V kept[MOST_COMPARED][KEPT];
  V sums[MOST_COMPARED][MOST_COMPARED];
  int64_t samples, summed;
} NAME(Compared);
#define Compared NAME(Compared)

// A barrier keeps the compiler from calling memset, which is slow here.
INLINE void NAME(clear_sums)(Compared *c) {
  for (int64_t n = 0; n < c->samples; n++)
    for (int64_t m = 0; m < MOST_COMPARED; m++) {
      c->sums[n][m] = (V)0;
      __asm__ volatile("" ::: "memory");
    }
  c->summed = 0;
}

INLINE void NAME(begin_comparing)(Compared *c, int64_t samples) {
  c->samples = (samples + BESIDE - 1) / BESIDE * BESIDE;
  NAME(clear_sums)(c);
  for (int64_t n = samples; n < c->samples; n++)
    for (int k = 0; k < KEPT; k++) {
      c->kept[n][k] = (V)0;
      __asm__ volatile("" ::: "memory");
    }
}

INLINE void NAME(compare_block)(Compared *c, int64_t n, int64_t m, int64_t size) {
  V sum[BLOCK * BESIDE];
  UNROLL for (int i = 0; i < BLOCK; i++)
    UNROLL for (int k = 0; k < BESIDE; k++) sum[i * BESIDE + k] = c->sums[n + i][m + k];
  for (int64_t j = 0; j < size; j++) {
    V other[BESIDE];
    UNROLL for (int k = 0; k < BESIDE; k++) other[k] = c->kept[m + k][j];
    UNROLL for (int i = 0; i < BLOCK; i++) {
      V own = c->kept[n + i][j];
      UNROLL for (int k = 0; k < BESIDE; k++) sum[i * BESIDE + k] = FMA(own, other[k], sum[i * BESIDE + k]);
    }
  }
  UNROLL for (int i = 0; i < BLOCK; i++)
    UNROLL for (int k = 0; k < BESIDE; k++) c->sums[n + i][m + k] = sum[i * BESIDE + k];
}

// Adds what the sums hold to K [samples, samples], whose upper half stays as it is.
static __attribute__((noinline)) void NAME(add_compared)(Compared *c, int64_t samples, double *K) {
  for (int64_t n = 0; n < samples; n++)
    for (int64_t m = 0; m <= n; m++) {
      double total = 0;
      UNROLL for (int i = 0; i < LANES; i++) total += c->sums[n][m][i];
      K[n * samples + m] += total;
    }
  NAME(clear_sums)(c);
}

// The kept pieces, `size` vectors of each sample.
static __attribute__((noinline)) void NAME(compare)(Compared *c, int64_t size, int64_t samples, double *K) {
  for (int64_t n = 0; n < c->samples; n += BLOCK)
    for (int64_t m = 0; m < n + BLOCK; m += BESIDE) NAME(compare_block)(c, n, m, size);
  c->summed += size;
  if (c->summed >= LONGEST) NAME(add_compared)(c, samples, K);
}

INLINE void NAME(end_comparing)(Compared *c, int64_t samples, double *K) {
  NAME(add_compared)(c, samples, K);
  for (int64_t n = 0; n < samples; n++)
    for (int64_t m = 0; m < n; m++) K[m * samples + n] = K[n * samples + m];
}

// Of several stored blocks: jobs [count, 4] are the address of G, its stride, rows (at most MOST_COMPARED) and columns; K
// [count, MOST_COMPARED * MOST_COMPARED] holds zeros, and then in its first places each one's [rows, rows].
EXPORT void NAME(compare_blocks)(const int64_t *jobs, const double *scales, int64_t count, double *K) {
  Compared c;
  for (int64_t k = 0; k < count; k++, jobs += 4, K += MOST_COMPARED * MOST_COMPARED) {
    const REAL *G = (const REAL *)(intptr_t)jobs[0], scale = (REAL)scales[k];
    int64_t stride = jobs[1], rows = jobs[2], columns = jobs[3];
    NAME(begin_comparing)(&c, rows);
    for (int64_t start = 0; start < columns; start += KEPT * LANES) {
      int64_t left = columns - start < KEPT * LANES ? columns - start : KEPT * LANES, whole = left / LANES;
      for (int64_t n = 0; n < rows; n++) {
        const REAL *g = G + n * stride + start;
        for (int64_t j = 0; j < whole; j++) c.kept[n][j] = NAME(load)(g + j * LANES) * scale;
        if (whole * LANES == left) continue;
        V rest = (V)0;
        for (int64_t i = whole * LANES; i < left; i++) rest[i - whole * LANES] = g[i] * scale;
        c.kept[n][whole] = rest;
      }
      NAME(compare)(&c, (left + LANES - 1) / LANES, rows, K);
    }
    NAME(end_comparing)(&c, rows, K);
  }
}
#undef LONGEST
#undef BLOCK
#undef BESIDE

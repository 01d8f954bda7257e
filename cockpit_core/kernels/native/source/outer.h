// One position per sample and few outputs: norms and up to two projections of g_n = b_n a_n^T, in one walk over the factors.
#define BESIDE 4  // samples that share what is read of a direction

// Adds b_n,i V_i a_n to the sums of a few samples n, lane by lane: within a piece in the type itself, then in double precision.
INLINE void NAME(multiply_rows)(const REAL *v, const REAL *a, const REAL *b, int64_t in, int64_t out, int64_t size, int samples,
                                NAME(W) *along) {
  V sums[BESIDE];
  UNROLL for (int n = 0; n < BESIDE; n++) sums[n] = (V)0;
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES) {
    V here = NAME(load)(v + j);
    UNROLL for (int n = 0; n < BESIDE; n++)
      if (n < samples) sums[n] = FMA(here, NAME(load)(a + n * in + j), sums[n]);
  }
  if (j < size) {
    V here = NAME(load_some)(v + j, size - j);
    UNROLL for (int n = 0; n < BESIDE; n++)
      if (n < samples) sums[n] = FMA(here, NAME(load_some)(a + n * in + j, size - j), sums[n]);
  }
  UNROLL for (int n = 0; n < BESIDE; n++)
    if (n < samples) along[n] = FMA(NAME(widen)(sums[n]), (NAME(W))(double)b[n * out], along[n]);
}

INLINE void NAME(project_rows)(const REAL *b, const REAL *a, int samples, int64_t out, int64_t in, const REAL *D, double *dots) {
  NAME(W) along[BESIDE];
  UNROLL for (int n = 0; n < BESIDE; n++) along[n] = (NAME(W))0;
  for (int64_t i = 0; i < out; i++)
    for (int64_t start = 0; start < in; start += PIECE) {
      int64_t piece = in - start < PIECE ? in - start : PIECE;
      const REAL *v = D + i * in + start;
      if (samples == BESIDE) NAME(multiply_rows)(v, a + start, b + i, in, out, piece, BESIDE, along);
      else
        for (int n = 0; n < samples; n++)
          NAME(multiply_rows)(v, a + n * in + start, b + n * out + i, in, out, piece, 1, along + n);
    }
  UNROLL for (int n = 0; n < BESIDE; n++)
    if (n < samples) dots[2 * n] = NAME(total)(along[n]);
}

INLINE double NAME(sum_squares)(const REAL *x, int64_t size) {
  NAME(W) sum = (NAME(W))0;
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES) {
    NAME(W) wide = NAME(widen)(NAME(load)(x + j));
    sum = FMA(wide, wide, sum);
  }
  if (j < size) {
    NAME(W) wide = NAME(widen)(NAME(load_some)(x + j, size - j));
    sum = FMA(wide, wide, sum);
  }
  return NAME(total)(sum);
}

// b [samples, out], a [samples, in], D0 and D1 [out, in] (0: none); norms [samples] and dots [samples, 2] are written.
EXPORT void NAME(reduce_outer)(const REAL *b, const REAL *a, int64_t samples, int64_t out, int64_t in, const REAL *D0,
                               const REAL *D1, double *norms, double *dots) {
  for (int64_t n = 0; n < samples; n++) {
    norms[n] = NAME(sum_squares)(b + n * out, out) * NAME(sum_squares)(a + n * in, in);
    dots[2 * n] = dots[2 * n + 1] = 0;
  }
  for (int64_t n = 0; n < samples; n += BESIDE) {
    int some = samples - n < BESIDE ? (int)(samples - n) : BESIDE;
    if (D0) NAME(project_rows)(b + n * out, a + n * in, some, out, in, D0, dots + 2 * n);
    if (D1) NAME(project_rows)(b + n * out, a + n * in, some, out, in, D1, dots + 2 * n + 1);
  }
}
#undef BESIDE

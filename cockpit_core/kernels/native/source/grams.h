// Norms of sums over positions of b a^T without forming them: ||g_n||^2 = sum over s, t of (a_s . a_t) (b_s . b_t). And what
// tells whether such sums add up to a given matrix: each along two directions of rank one, left right^T.

#define SIDE 4  // positions of a tile, each way

// x . y
INLINE double NAME(dot)(const REAL *x, const REAL *y, int64_t size) {
  double total = 0;
  for (int64_t start = 0; start < size; start += PIECE) {
    int64_t end = size - start < PIECE ? size : start + PIECE, j = start;
    V sum = (V)0;
    for (; j + LANES <= end; j += LANES) sum = FMA(NAME(load)(x + j), NAME(load)(y + j), sum);
    for (; j < end; j++) total += (double)x[j] * (double)y[j];
    total += NAME(add_lanes)(sum);
  }
  return total;
}

// Made as long as 1; how long it was.
INLINE double NAME(normalise)(REAL *x, int64_t size) {
  double largest = 0, total = 0;
  for (int64_t j = 0; j < size; j++) {
    double own = x[j] < 0 ? -(double)x[j] : (double)x[j];
    largest = own > largest || own != own ? own : largest;
  }
  if (!(largest > 0)) return largest;
  for (int64_t j = 0; j < size; j++) total += (x[j] / largest) * (x[j] / largest);
  double length = __builtin_sqrt(total) * largest;
  for (int64_t j = 0; j < size; j++) x[j] = (REAL)(x[j] / length);
  return length;
}

// Matrices G [rows, columns], one behind the other in memory: jobs [count, 7] are the addresses of G, of fixed vectors left0
// [rows] and right0 [columns], of left [rows] and right [columns], which are written, and rows and columns. left and right
// are where G is large: G right0 and then G' left, both of length 1. found [count, 3]: ||G||^2, and G along both pairs.
EXPORT void NAME(look_at_matrices)(const int64_t *jobs, int64_t count, double *found) {
  for (int64_t k = 0; k < count; k++, jobs += 7, found += 3) {
    const REAL *G = (const REAL *)(intptr_t)jobs[0];
    const REAL *left0 = (const REAL *)(intptr_t)jobs[1], *right0 = (const REAL *)(intptr_t)jobs[2];
    REAL *left = (REAL *)(intptr_t)jobs[3], *right = (REAL *)(intptr_t)jobs[4];
    const int64_t rows = jobs[5], columns = jobs[6];
    double squares = 0;
    for (int64_t r = 0; r < rows; r++) {
      const REAL *row = G + r * columns;
      squares += NAME(dot)(row, row, columns);
      left[r] = (REAL)NAME(dot)(row, right0, columns);
    }
    found[0] = squares, found[1] = NAME(dot)(left0, left, rows);
    NAME(normalise)(left, rows);
    for (int64_t j = 0; j < columns; j++) right[j] = 0;
    for (int64_t r = 0; r < rows; r++) {
      const REAL *row = G + r * columns, factor = left[r];
      int64_t j = 0;
      for (; j + LANES <= columns; j += LANES)
        *(NAME(VU) *)(right + j) = FMA(NAME(load)(row + j), NAME(splat)(factor), NAME(load)(right + j));
      for (; j < columns; j++) right[j] += row[j] * factor;
    }
    found[2] = NAME(normalise)(right, columns);
  }
}

// The sum of all lanes, by halves.
INLINE REAL NAME(fold_lanes)(V x) {
#if LANES == 2
  return x.x + x.y;
#else
  __auto_type half = x.lo + x.hi;
#if LANES == 4
  return half.x + half.y;
#else
  __auto_type quarter = half.lo + half.hi;
#if LANES == 8
  return quarter.x + quarter.y;
#else
  __auto_type eighth = quarter.lo + quarter.hi;
  return eighth.x + eighth.y;
#endif
#endif
#endif
}

// Products of SIDE rows with SIDE rows.
INLINE void NAME(multiply_tile)(const REAL *const *x, const REAL *const *y, int64_t size, REAL *products) {
  V sum[SIDE * SIDE];
  UNROLL for (int i = 0; i < SIDE * SIDE; i++) sum[i] = (V)0;
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES) {
    V other[SIDE];
    UNROLL for (int k = 0; k < SIDE; k++) other[k] = NAME(load)(y[k] + j);
    UNROLL for (int i = 0; i < SIDE; i++) {
      V own = NAME(load)(x[i] + j);
      UNROLL for (int k = 0; k < SIDE; k++) sum[i * SIDE + k] = FMA(own, other[k], sum[i * SIDE + k]);
    }
  }
  UNROLL for (int i = 0; i < SIDE * SIDE; i++) products[i] = NAME(fold_lanes)(sum[i]);
  for (; j < size; j++)
    UNROLL for (int i = 0; i < SIDE; i++)
      UNROLL for (int k = 0; k < SIDE; k++) products[i * SIDE + k] += x[i][j] * y[k][j];
}

// jobs [count, 14]: addresses of b and a, numbers between samples and between positions of b, the same of a, positions, out,
// inner, the addresses of left0, right0, left and right as above, and where this job's numbers begin. Of samples first to
// last, numbers [*, 4] are ||g_n||^2, the same without products of different positions, and g_n along both directions.
EXPORT void NAME(reduce_grams)(const int64_t *jobs, int64_t count, int64_t first, int64_t last, const double *scales,
                               double *numbers) {
  for (int64_t k = 0; k < count; k++, jobs += 14) {
    const int64_t positions = jobs[6], out = jobs[7], inner = jobs[8];
    const REAL *left0 = (const REAL *)(intptr_t)jobs[9], *right0 = (const REAL *)(intptr_t)jobs[10];
    const REAL *left = (const REAL *)(intptr_t)jobs[11], *right = (const REAL *)(intptr_t)jobs[12];
    const double scale = scales[k];
    for (int64_t n = first; n < last; n++) {
      const REAL *b = (const REAL *)(intptr_t)jobs[0] + n * jobs[2], *a = (const REAL *)(intptr_t)jobs[1] + n * jobs[4];
      double total = 0, own = 0, along0 = 0, along = 0;
      for (int64_t s = 0; s < positions; s++) {
        const REAL *bs = b + s * jobs[3], *as = a + s * jobs[5];
        along0 += NAME(dot)(bs, left0, out) * NAME(dot)(as, right0, inner);
        along += NAME(dot)(bs, left, out) * NAME(dot)(as, right, inner);
      }
      for (int64_t s = 0; s < positions; s += SIDE)
        for (int64_t t = 0; t <= s; t += SIDE) {
          const REAL *bs[SIDE], *bt[SIDE], *as[SIDE], *at[SIDE];
          REAL pa[SIDE * SIDE], pb[SIDE * SIDE];
          UNROLL for (int i = 0; i < SIDE; i++) {
            int64_t p = s + i < positions ? s + i : positions - 1, q = t + i < positions ? t + i : positions - 1;
            bs[i] = b + p * jobs[3], as[i] = a + p * jobs[5], bt[i] = b + q * jobs[3], at[i] = a + q * jobs[5];
          }
          NAME(multiply_tile)(as, at, inner, pa);
          NAME(multiply_tile)(bs, bt, out, pb);
          for (int i = 0; i < SIDE && s + i < positions; i++)
            for (int j = 0; j < SIDE && t + j <= s + i; j++) {
              double product = (double)pa[i * SIDE + j] * (double)pb[i * SIDE + j];
              if (t + j == s + i) own += product, total += product;
              else total += 2 * product;
            }
        }
      double *to = numbers + 4 * (jobs[13] + n);
      to[0] = total * scale * scale, to[1] = own * scale * scale, to[2] = along0 * scale, to[3] = along * scale;
    }
  }
}
#undef SIDE

// Individual gradients of a convolution, g_n[o, row, :] = sum_s left_n[o, s] image_n[place(s) + row], from the positions s
// whose output gradient is not zero (behind a ReLU and a pooling about one in eight). They exist in registers only: summed,
// squared, projected, counted, forgotten. The image has its channels last, so that a row of the kernel is a row of memory.

typedef struct {
  V squares, first, second;
} NAME(Sums);
#define Sums NAME(Sums)

typedef struct {
  const int32_t *places;  // where in the image the patch of a position begins
  const int32_t *starts;  // where in the patch a group of rows begins
  int64_t positions, groups_of_rows, rows, row_step, length;  // rows of `length` numbers, `row_step` apart
} NAME(Shape);
#define Shape NAME(Shape)

// K rows of L vectors, summed in registers.
INLINE void NAME(strip)(int K, int L, const REAL *image, int64_t row_step, const int32_t *at, const REAL *weights,
                        int64_t nonzero, V *found) {
  V sum[REGISTERS];
  UNROLL for (int i = 0; i < K * L; i++) sum[i] = 0;
  for (int64_t s = 0; s < nonzero; s++) {
    const REAL *p = image + at[s];
    V w = NAME(splat)(weights[s]);
    UNROLL for (int k = 0; k < K; k++) {
      UNROLL for (int l = 0; l < L; l++) sum[k * L + l] = FMA(w, NAME(load)(p + k * row_step + l * LANES), sum[k * L + l]);
    }
  }
  UNROLL for (int i = 0; i < K * L; i++) found[i] = sum[i];
}

#define STRIP(K, L)                                                            \
  case 32 * (K) + (L):                                                         \
    NAME(strip)(K, L, image, row_step, at, weights, nonzero, found);           \
    break;

static __attribute__((noinline)) void NAME(run_strip)(int K, int L, const REAL *image, int64_t row_step, const int32_t *at,
                                                      const REAL *weights, int64_t nonzero, V *found) {
  switch (32 * K + L) {
    STRIP(1, 1) STRIP(1, 2) STRIP(1, 3) STRIP(1, 4) STRIP(1, 5) STRIP(1, 6) STRIP(1, 7) STRIP(1, 8)
    STRIP(1, 9) STRIP(1, 10) STRIP(1, 11) STRIP(1, 12)
    STRIP(2, 1) STRIP(2, 2) STRIP(2, 3) STRIP(2, 4) STRIP(2, 5) STRIP(2, 6)
    STRIP(3, 1) STRIP(3, 2) STRIP(3, 3) STRIP(3, 4)
    STRIP(5, 1) STRIP(5, 2) STRIP(7, 1)
#if REGISTERS == 18
    STRIP(1, 13) STRIP(1, 14) STRIP(1, 15) STRIP(1, 16) STRIP(1, 17) STRIP(1, 18)
    STRIP(2, 7) STRIP(2, 8) STRIP(2, 9) STRIP(3, 5) STRIP(3, 6) STRIP(5, 3) STRIP(7, 2)
#endif
  }
}
#undef STRIP

// What was summed, K rows of L vectors: scaled, squared, projected, counted. Lanes of a row's last vector from `tail` on do
// not count.
INLINE void NAME(use)(const V *found, int K, int L, int64_t length, int64_t tail, REAL scale, const REAL *d0, const REAL *d1,
                      Sums *sums, int how, Tally *tally) {
  V squares = sums->squares, first = sums->first, second = sums->second;
  Around around = {(I)0, 0};
  I inside = NAME(below)(tail);
  uint32_t lanes = tail < LANES ? ((uint32_t)1 << tail) - 1 : ALL_LANES;
  for (int k = 0; k < K; k++) {
    for (int l = 0; l < L; l++) {
      int last = l == L - 1;
      V x = found[k * L + l] * scale;
      V a = d0 ? NAME(load)(d0 + k * length + l * LANES) : (V)0;
      V b = d1 ? NAME(load)(d1 + k * length + l * LANES) : (V)0;
      if (last) x = (V)((I)x & inside), a = (V)((I)a & inside), b = (V)((I)b & inside);
      squares = FMA(x, x, squares), first = FMA(x, a, first), second = FMA(x, b, second);
      if (how) NAME(add)(tally, &around, x, last ? lanes : ALL_LANES, how);
    }
  }
  if (how == 1) NAME(fold)(tally, &around);
  sums->squares = squares, sums->first = first, sums->second = second;
}

// How many rows at a time: as many as there are registers for, of the numbers that `run_strip` knows.
INLINE int NAME(rows_at_once)(int64_t left, int64_t vectors) {
  if (left >= 7 && vectors * 7 <= REGISTERS) return 7;
  if (left >= 5 && vectors * 5 <= REGISTERS) return 5;
  if (left >= 3 && vectors * 3 <= REGISTERS) return 3;
  return left >= 2 && vectors * 2 <= REGISTERS ? 2 : 1;
}

// One output channel of one sample.
INLINE void NAME(walk)(const Shape *shape, const REAL *image, const int32_t *at, const REAL *weights, int64_t nonzero,
                       REAL scale, const REAL *d0, const REAL *d1, Sums *sums, int how, Tally *tally) {
  int64_t length = shape->length, vectors = (length + LANES - 1) / LANES;
  V found[REGISTERS];
  int64_t strips = (vectors + REGISTERS - 1) / REGISTERS;
  for (int64_t part = 0; part < shape->groups_of_rows; part++) {
    int64_t row = 0;
    while (row < shape->rows) {
      const REAL *base = image + shape->starts[part] + row * shape->row_step;
      int64_t offset = (part * shape->rows + row) * length;
      int K = NAME(rows_at_once)(shape->rows - row, vectors);
      for (int64_t k = 0; k < strips; k++) {
        int64_t from = vectors * k / strips, to = vectors * (k + 1) / strips;
        int64_t tail = to == vectors ? length - (vectors - 1) * LANES : LANES;
        NAME(run_strip)(K, (int)(to - from), base + from * LANES, shape->row_step, at, weights, nonzero, found);
        const REAL *a = d0 ? d0 + offset + from * LANES : 0, *b = d1 ? d1 + offset + from * LANES : 0;
        if (how == 1) NAME(use)(found, K, (int)(to - from), length, tail, scale, a, b, sums, 1, tally);
        else if (how == 2) NAME(use)(found, K, (int)(to - from), length, tail, scale, a, b, sums, 2, tally);
        else NAME(use)(found, K, (int)(to - from), length, tail, scale, a, b, sums, 0, tally);
      }
      row += K;
    }
  }
}

INLINE int NAME(is_finite)(const REAL *values, int64_t size) {
  I strange = 0;
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES) {
    V x = NAME(load)(values + j);
    strange |= ~((x - x) == (REAL)0);
  }
  for (; j < size; j++) strange[0] |= -(values[j] - values[j] != 0);
  return NAME(bits)(strange) == 0;
}

// The positions whose output gradient is not zero, side by side; -1 where one is not finite.
INLINE int64_t NAME(find_nonzero)(const REAL *left, const Shape *shape, REAL *weights, int32_t *at) {
  int64_t nonzero = 0, s = 0;
  I strange = 0;
  for (; s + LANES <= shape->positions; s += LANES) {
    V x = NAME(load)(left + s);
    strange |= ~((x - x) == (REAL)0);
    for (uint32_t found = NAME(bits)(x != (REAL)0); found; found &= found - 1) {
      int lane = __builtin_ctz(found);
      weights[nonzero] = left[s + lane], at[nonzero++] = shape->places[s + lane];
    }
  }
  for (; s < shape->positions; s++) {
    strange[0] |= -(left[s] - left[s] != 0);
    if (left[s] != 0) weights[nonzero] = left[s], at[nonzero++] = shape->places[s];
  }
  return NAME(bits)(strange) ? -1 : nonzero;
}

// image [samples, groups, image_size], left [samples, groups, channels, positions], D [directions][groups, channels,
// groups_of_rows, rows, length]; sizes: groups, channels, image_size, positions, groups_of_rows, rows, row_step, length.
// LANES numbers behind the image's and the directions' end must be readable. Adds to norms [samples], dots [samples, 2] and,
// if there is a rule, to the table [TABLES, size]. Returns 1, and nothing of use, if something is not finite: 0 * inf is NaN,
// which whoever skips zeros does not see.
EXPORT int NAME(reduce_convolution)(const REAL *image, const REAL *left, int64_t samples, const int64_t *sizes,
                                    const int32_t *places, const int32_t *starts, double scale, const REAL *D,
                                    int64_t apart, int directions, const double *given, int64_t *table, int64_t size,
                                    double *norms, double *dots, REAL *weights, int32_t *at) {
  int64_t groups = sizes[0], channels = sizes[1], image_size = sizes[2];
  Shape shape = {places, starts, sizes[3], sizes[4], sizes[5], sizes[6], sizes[7]};
  int64_t row_size = shape.groups_of_rows * shape.rows * shape.length;
  Rule rule;
  Tally tally = {&rule, table, size};
  if (given) rule = NAME(read_rule)(given);
  int how = given ? (rule.near > 0 ? 1 : 2) : 0;
  WHOLE zero = given ? NAME(categories)((V)0, &rule)[0] : 0;
  for (int64_t n = 0; n < samples; n++) {
    for (int64_t g = 0; g < groups; g++) {
      const REAL *own = image + (n * groups + g) * image_size;
      if (!NAME(is_finite)(own, image_size)) return 1;
      for (int64_t o = 0; o < channels; o++) {
        int64_t channel = g * channels + o;
        int64_t nonzero = NAME(find_nonzero)(left + (n * groups * channels + channel) * shape.positions, &shape, weights, at);
        if (nonzero < 0) return 1;
        if (nonzero == 0) {
          if (how) table[zero] += row_size;
          continue;
        }
        const REAL *d0 = directions > 0 ? D + channel * row_size : 0;
        const REAL *d1 = directions > 1 ? D + apart + channel * row_size : 0;
        Sums sums = {(V)0, (V)0, (V)0};
        NAME(walk)(&shape, own, at, weights, nonzero, (REAL)scale, d0, d1, &sums, NAME(choose_way)(&tally, how), &tally);
        NAME(note_way)(&tally, row_size);
        UNROLL for (int i = 0; i < LANES; i++) {
          norms[n] += sums.squares[i], dots[2 * n] += sums.first[i], dots[2 * n + 1] += sums.second[i];
        }
      }
    }
  }
  if (given) NAME(flush)(&tally);
  return 0;
}

// Individual gradients from all positions, g_n[o, :] = sum_s left_n[o, s] image_n[place(s) + :], where most output
// gradients are not zero: a Linear with many tokens, a convolution behind a normalisation. Tiles of several output channels
// by several vectors of the patch are summed in registers over all positions, then used and forgotten. Nothing is skipped,
// so that 0 * inf is NaN as it should be.

#if REGISTERS == 18
#define TILE 24
#else
#define TILE 12
#endif
#define WIDEST 4  // vectors of a tile
#define MOST_SUMMED 256  // numbers in a row whose sums stay in the type itself
#define TURNS MOST_COMPARED
#define SMALL_DIRECTIONS (1 << 16)  // bytes that stay in the first caches anyway
#define IMAGES (1 << 19)            // bytes of images that stay in the second

typedef struct {
  const REAL *image[WIDEST];  // where each vector of the tile begins in the patch at place 0
  const int32_t *places;
  int64_t positions;
  const REAL *left;  // of the tile's first output channel
  int64_t left_step, channel_step;
} NAME(Tile);

// O output channels by L vectors.
INLINE void NAME(tile)(int O, int L, const NAME(Tile) *t, int64_t channel_step, V *found) {
  V sum[TILE];
  const REAL *image[WIDEST], *left = t->left;
  UNROLL for (int l = 0; l < L; l++) image[l] = t->image[l];
  UNROLL for (int i = 0; i < O * L; i++) sum[i] = 0;
  const int32_t *places = t->places;
  int64_t positions = t->positions, left_step = t->left_step;
  for (int64_t s = 0; s < positions; s++, left += left_step) {
    int64_t at = places[s];
    V x[WIDEST];
    UNROLL for (int l = 0; l < L; l++) x[l] = NAME(load)(image[l] + at);
    UNROLL for (int o = 0; o < O; o++) {
      V w = NAME(splat)(left[o * channel_step]);
      UNROLL for (int l = 0; l < L; l++) sum[o * L + l] = FMA(w, x[l], sum[o * L + l]);
    }
  }
  UNROLL for (int i = 0; i < O * L; i++) found[i] = sum[i];
}

#define ONE(O, L)                                                                \
  case 8 * (O) + (L):                                                            \
    if (t->channel_step == 1) NAME(tile)(O, L, t, 1, found);                     \
    else NAME(tile)(O, L, t, t->channel_step, found);                            \
    break;

static __attribute__((noinline)) void NAME(run_tile)(int O, int L, const NAME(Tile) *t, V *found) {
  switch (8 * O + L) {
    ONE(1, 1) ONE(1, 2) ONE(1, 3) ONE(1, 4) ONE(2, 1) ONE(2, 2) ONE(2, 3) ONE(2, 4) ONE(4, 1) ONE(4, 2) ONE(4, 3) ONE(8, 1)
#if TILE == 24
    ONE(4, 4) ONE(6, 1) ONE(6, 2) ONE(6, 3) ONE(6, 4) ONE(8, 2) ONE(8, 3) ONE(12, 1) ONE(12, 2) ONE(16, 1)
#else
    ONE(3, 1) ONE(3, 2) ONE(3, 3) ONE(3, 4) ONE(6, 1) ONE(6, 2)
#endif
  }
}
#undef ONE

// How many output channels at a time with up to L vectors, of the numbers that `run_tile` knows.
INLINE int NAME(channels_at_once)(int64_t left, int L) {
#if TILE == 24
  static const int known[WIDEST][5] = {{16, 8, 4, 2, 1}, {12, 6, 4, 2, 1}, {8, 4, 2, 1, 1}, {6, 4, 2, 1, 1}};
#else
  static const int known[WIDEST][5] = {{8, 4, 2, 1, 1}, {6, 4, 2, 1, 1}, {4, 2, 1, 1, 1}, {3, 2, 1, 1, 1}};
#endif
  for (int i = 0; i < 4; i++)
    if (known[L - 1][i] <= left) return known[L - 1][i];
  return 1;
}

// What was summed, O channels by L vectors: scaled, squared, projected, counted, and kept where somebody compares samples.
// `lanes[l]` of a vector count.
INLINE void NAME(use_tile)(const V *found, int O, int L, const int64_t *lanes, REAL scale, const REAL *d0, const REAL *d1,
                           const int64_t *along, int64_t row_size, Sums *sums, int how, Tally *tally, V *kept) {
  V squares = sums->squares, first = sums->first, second = sums->second;
  Around around = {(I)0, 0};
  for (int o = 0; o < O; o++) {
    for (int l = 0; l < L; l++) {
      V x = found[o * L + l] * scale;
      V a = d0 ? NAME(load)(d0 + o * row_size + along[l]) : (V)0;
      V b = d1 ? NAME(load)(d1 + o * row_size + along[l]) : (V)0;
      uint32_t counted = ALL_LANES;
      if (lanes[l] < LANES) {
        I inside = NAME(below)(lanes[l]);
        x = (V)((I)x & inside), a = (V)((I)a & inside), b = (V)((I)b & inside);
        counted = ((uint32_t)1 << lanes[l]) - 1;
      }
      if (kept) kept[o * L + l] = x;
      squares = FMA(x, x, squares), first = FMA(x, a, first), second = FMA(x, b, second);
      if (how) NAME(add)(tally, &around, x, counted, how);
    }
  }
  if (how == 1) NAME(fold)(tally, &around);
  sums->squares = squares, sums->first = first, sums->second = second;
}

// A tile of one sample, summed and used.
INLINE void NAME(reduce_tile)(int O, int L, const NAME(Tile) *t, const int64_t *lanes, REAL scale, const REAL *d0,
                              const REAL *d1, const int64_t *along, int64_t row_size, Sums *sums, int how, Tally *tally,
                              V *kept) {
  V found[TILE];
  NAME(run_tile)(O, L, t, found);
  int way = NAME(choose_way)(tally, how);
  if (way == 1) NAME(use_tile)(found, O, L, lanes, scale, d0, d1, along, row_size, sums, 1, tally, kept);
  else if (way == 2) NAME(use_tile)(found, O, L, lanes, scale, d0, d1, along, row_size, sums, 2, tally, kept);
  else NAME(use_tile)(found, O, L, lanes, scale, d0, d1, along, row_size, sums, 0, tally, kept);
  NAME(note_way)(tally, O * L * LANES);
}

// How many samples take turns with each tile: where directions are large, they are read once for all of these, as long as
// the images stay in the cache.
INLINE int64_t NAME(samples_at_once)(int64_t image_size, int64_t read) {
  if (read * (int64_t)sizeof(REAL) < SMALL_DIRECTIONS) return 1;
  int64_t fit = IMAGES / (image_size * (int64_t)sizeof(REAL) + 1);
  return fit < 1 ? 1 : fit < TURNS ? fit : TURNS;
}

// As reduce_convolution, but left may lie in any order: steps are the numbers between samples, output channels and
// positions of it, and between samples of the image. All positions count. The first `compared` samples (at most
// MOST_COMPARED) are compared with each other: K [compared, compared] holds zeros before.
EXPORT void NAME(reduce_dense)(const REAL *image, const REAL *left, int64_t samples, const int64_t *sizes,
                               const int64_t *steps, const int32_t *places, const int32_t *starts, double scale,
                               const REAL *D, int64_t apart, int directions, const double *given, int64_t *table,
                               int64_t size, double *norms, double *dots, int64_t compared, double *K) {
  int64_t groups = sizes[0], channels = sizes[1], image_size = sizes[2];
  int64_t rows = sizes[5], row_step = sizes[6], length = sizes[7];
  int64_t strips = (length + LANES - 1) / LANES, vectors = sizes[4] * rows * strips, row_size = sizes[4] * rows * length;
  int64_t widest = vectors % 3 == 0 ? 3 : vectors < WIDEST ? vectors : WIDEST;  // kernels of 3 x 3 are common
  int64_t turns = NAME(samples_at_once)(image_size, directions * groups * channels * row_size);
  Rule rule;
  Tally tally = {&rule, table, size};
  if (given) rule = NAME(read_rule)(given);
  int how = given ? (rule.near > 0 ? 1 : 2) : 0;
  Sums sums[TURNS];
  Compared pieces;
  if (compared) NAME(begin_comparing)(&pieces, compared);
  for (int64_t first = 0, last; first < samples; first = last) {
    int64_t together = first < compared ? compared : 0;  // they take turns, whatever the caches hold
    last = first + (turns > together ? turns : together);
    last = last < samples ? last : samples;
    for (int64_t o = 0, O; o < groups * channels; o += O) {
      int64_t g = o / channels, summed = 0;
      O = NAME(channels_at_once)((g + 1) * channels - o, (int)widest);
      const REAL *d0 = directions > 0 ? D + o * row_size : 0, *d1 = directions > 1 ? D + apart + o * row_size : 0;
      for (int64_t n = first; n < last; n++) sums[n - first] = (Sums){(V)0, (V)0, (V)0};
      for (int64_t from = 0, L; from < vectors; from += L) {  // along rows of the directions, which may be large
        int64_t lanes[WIDEST], along[WIDEST], begins[WIDEST];
        L = vectors - from < widest ? vectors - from : widest;
        for (int l = 0; l < L; l++) {
          int64_t row = (from + l) / strips, strip = (from + l) % strips * LANES;
          begins[l] = g * image_size + starts[row / rows] + row % rows * row_step + strip;
          lanes[l] = length - strip < LANES ? length - strip : LANES, along[l] = row * length + strip;
        }
        summed += O * L;
        int ends = from + L == vectors || summed >= MOST_SUMMED;
        for (int64_t n = first; n < last; n++) {
          NAME(Tile) t = {{0}, places, sizes[3], left + n * steps[0] + o * steps[1], steps[2], steps[1]};
          for (int l = 0; l < L; l++) t.image[l] = image + n * steps[3] + begins[l];
          Sums *own = sums + (n - first);
          NAME(reduce_tile)((int)O, (int)L, &t, lanes, (REAL)scale, d0, d1, along, row_size, own, how, &tally,
                            n < together ? pieces.kept[n] : 0);
          if (!ends) continue;
          UNROLL for (int i = 0; i < LANES; i++)
            norms[n] += own->squares[i], dots[2 * n] += own->first[i], dots[2 * n + 1] += own->second[i];
          *own = (Sums){(V)0, (V)0, (V)0};
        }
        if (together) NAME(compare)(&pieces, O * L, compared, K);
        summed = ends ? 0 : summed;
      }
    }
  }
  if (compared) NAME(end_comparing)(&pieces, compared, K);
  if (given) NAME(flush)(&tally);
}
#undef Compared
#undef KEPT
#undef MOST_COMPARED
#undef TILE
#undef WIDEST
#undef MOST_SUMMED
#undef TURNS
#undef SMALL_DIRECTIONS
#undef IMAGES

// Several columns of output gradients of a convolution at once: sums of squared individual gradients, and the way back to
// its input. Only entries that are not zero are walked over, each with its numbers for all columns side by side: what
// is read of an image or a weight is used for every column.

#if REGISTERS == 18
#define HELD 20  // sums in flight: 20 of 32 registers
#else
#define HELD 12  // of 16
#endif
#define MOST_COLUMNS 10
#define MOST_VECTORS 6

// Entries from `from` to `to` look at `base + at[entry]`.
typedef struct {
  const REAL *base;
  int64_t from, to;
} NAME(Segment);
#define Segment NAME(Segment)

// found[c * L + l] = sum of weights[entry, c] * (L vectors, `step` apart, that the entry looks at).
INLINE void NAME(combine)(int C, int L, const Segment *segments, int64_t count, int64_t step, const int32_t *at,
                          const REAL *weights, V *found) {
  V sum[HELD];
  UNROLL for (int i = 0; i < C * L; i++) sum[i] = 0;
  for (int64_t k = 0; k < count; k++) {
    const REAL *base = segments[k].base;
    for (int64_t e = segments[k].from; e < segments[k].to; e++) {
      const REAL *p = base + at[e], *w = weights + e * C;
      V x[MOST_VECTORS];
      UNROLL for (int l = 0; l < L; l++) x[l] = NAME(load)(p + l * step);
      UNROLL for (int c = 0; c < C; c++) {
        V own = NAME(splat)(w[c]);
        UNROLL for (int l = 0; l < L; l++) sum[c * L + l] = FMA(own, x[l], sum[c * L + l]);
      }
    }
  }
  UNROLL for (int i = 0; i < C * L; i++) found[i] = sum[i];
}

#define CASE(C, L)                                                             \
  case 16 * (C) + (L):                                                         \
    NAME(combine)(C, L, segments, count, step, at, weights, found);            \
    break;

static __attribute__((noinline)) void NAME(run_combine)(int C, int L, const Segment *segments, int64_t count, int64_t step,
                                                        const int32_t *at, const REAL *weights, V *found) {
  switch (16 * C + L) {
    CASE(1, 1) CASE(1, 2) CASE(1, 3) CASE(1, 4) CASE(1, 5) CASE(1, 6)
    CASE(2, 1) CASE(2, 2) CASE(2, 3) CASE(2, 4) CASE(2, 5) CASE(2, 6)
    CASE(3, 1) CASE(3, 2) CASE(3, 3) CASE(3, 4) CASE(4, 1) CASE(4, 2) CASE(4, 3) CASE(5, 1) CASE(5, 2) CASE(6, 1)
    CASE(6, 2) CASE(7, 1) CASE(8, 1) CASE(9, 1) CASE(10, 1)
#if HELD == 20
    CASE(3, 5) CASE(3, 6) CASE(4, 4) CASE(4, 5) CASE(5, 3) CASE(5, 4) CASE(6, 3) CASE(7, 2) CASE(8, 2) CASE(9, 2)
    CASE(10, 2)
#endif
  }
}
#undef CASE

INLINE int NAME(vectors_at_once)(int C) { return HELD / C < MOST_VECTORS ? HELD / C : MOST_VECTORS; }

// Where the number of a column, a sample, a channel and a position lies.
typedef struct {
  int64_t column, sample, channel, position;
} NAME(Steps);
#define Steps NAME(Steps)

// Entries of one channel of one sample that are not zero in every column: where they look, and their numbers.
INLINE int64_t NAME(list_entries)(const REAL *left, const int32_t *where, int64_t apart, int64_t size, const Steps *steps,
                                  int C, const int32_t *places, int32_t *at, REAL *weights, REAL *sums) {
  int64_t count = 0;
  for (int64_t s = 0; s < size; s++) {
    int64_t position = where ? where[s * apart] : s;
    if (position < 0) continue;
    const REAL *own = left + s * steps->position;
    REAL *to = weights + count * C;
    int some = 0;
    for (int c = 0; c < C; c++) {
      REAL x = own[c * steps->column];
      to[c] = x, some |= x != 0;
      sums[c] += x;
    }
    at[count] = places[position], count += some;
  }
  return count;
}

// Of one vector of each column: the sum of squares is added to `total`; lanes outside of `inside` do not count in *squares.
// Without `squares` the one vector itself is added.
INLINE void NAME(add_squares)(const V *found, int C, int apart, const REAL *signs, REAL *total, I inside, V *squares) {
  V sum = 0;
  if (!squares) {
    *(NAME(VU) *)total = NAME(load)(total) + found[0];
    return;
  }
  for (int c = 0; c < C; c++) {
    V x = found[c * apart];
    sum = FMA(x, signs ? x * NAME(splat)(signs[c]) : x, sum);
  }
  *(NAME(VU) *)total = NAME(load)(total) + sum;
  *squares += (V)((I)sum & inside);
}

// One output channel of one sample: squares go to `total` [rows, padded], their sum to *squares.
static __attribute__((noinline)) void NAME(square_channel)(const Shape *shape, const REAL *image, int64_t padded, int C, const int32_t *at,
                                 const REAL *weights, int64_t count, const REAL *signs, REAL *total, V *squares) {
  int most = NAME(vectors_at_once)(C);
  int64_t vectors = (shape->length + LANES - 1) / LANES, strips = (vectors + most - 1) / most;
  I last = NAME(below)(shape->length - (vectors - 1) * LANES), all = ~(I)0;
  V found[HELD];
  for (int64_t part = 0; part < shape->groups_of_rows; part++) {
    const REAL *base = image + shape->starts[part];
    REAL *own = total + part * shape->rows * padded;
    int64_t at_once = vectors == 1 ? most : 1;  // short rows: several of them at once
    for (int64_t row = 0; row < shape->rows; row += at_once) {
      int64_t rows = shape->rows - row < at_once ? shape->rows - row : at_once;
      for (int64_t k = 0; k < strips; k++) {
        int64_t from = vectors * k / strips, to = vectors * (k + 1) / strips;
        int L = vectors == 1 ? (int)rows : (int)(to - from);
        Segment segment = {base + row * shape->row_step + from * LANES, 0, count};
        NAME(run_combine)(C, L, &segment, 1, vectors == 1 ? shape->row_step : LANES, at, weights, found);
        for (int l = 0; l < L; l++) {
          REAL *slot = own + row * padded + from * LANES + l * (vectors == 1 ? padded : LANES);
          int ends = vectors == 1 || from + l == vectors - 1;
          NAME(add_squares)(found + l, C, L, signs, slot, ends ? last : all, squares);
        }
      }
    }
  }
}

// image [samples, groups, image_size]; left: a number for each column, sample, channel and place, `steps` apart; where
// [samples, places, channels]: the output position that a place stands for, -1: none; without it the places are the positions.
// sizes: groups, channels of a group, image_size, places, groups_of_rows, rows, row_step, length, padded. Adds to total
// [channels, rows, padded], norms [samples] and sums [samples, channels, columns] (of the gradients themselves).
// LANES numbers behind the image's end must be readable. Returns 1, and nothing of use, if the image is not finite.
// Without norms: the gradients of one column themselves are added to total, not their squares.
EXPORT int NAME(square_convolution)(const REAL *image, const REAL *left, const int32_t *where, int64_t samples, int columns,
                                    const int64_t *apart, const int64_t *sizes, const int32_t *places, const int32_t *starts,
                                    const REAL *signs, REAL *total, double *norms, REAL *sums, REAL *weights, int32_t *at) {
  int64_t groups = sizes[0], channels = sizes[1], image_size = sizes[2], size = sizes[3], padded = sizes[8];
  int64_t all = groups * channels;
  Shape shape = {places, starts, size, sizes[4], sizes[5], sizes[6], sizes[7]};
  Steps steps = {apart[0], apart[1], apart[2], apart[3]};
  for (int64_t n = 0; n < samples; n++) {
    V squares = 0;
    for (int64_t g = 0; g < groups; g++) {
      const REAL *own = image + (n * groups + g) * image_size;
      if (!NAME(is_finite)(own, image_size)) return 1;
      for (int64_t o = g * channels; o < (g + 1) * channels; o++) {
        const REAL *from = left + n * steps.sample + o * steps.channel;
        const int32_t *chosen = where ? where + n * size * all + o : 0;
        REAL *sum = sums + (n * all + o) * columns;
        int64_t count = NAME(list_entries)(from, chosen, all, size, &steps, columns, places, at, weights, sum);
        if (!count) continue;
        REAL *to = total + o * shape.groups_of_rows * shape.rows * padded;
        const REAL *sign = signs ? signs + n * columns : 0;
        NAME(square_channel)(&shape, own, padded, columns, at, weights, count, sign, to, norms ? &squares : 0);
      }
    }
    if (!norms) continue;
    UNROLL for (int i = 0; i < LANES; i++) norms[n] += squares[i];
  }
  return 0;
}

// The entries of one sample by the output position that they stand for: start[s] to start[s + 1] are those of s.
INLINE void NAME(sort_entries)(const REAL *left, const int32_t *where, const Steps *steps, int C, const int64_t *sizes,
                               int32_t *start, int32_t *at, REAL *weights) {
  int64_t channels = sizes[0], width = sizes[1], size = sizes[2], positions = sizes[3];
  for (int64_t s = 0; s <= positions + 1; s++) start[s] = 0;
  for (int64_t k = 0; k < size * channels; k++) start[where[k] + 2] += where[k] >= 0;
  for (int64_t s = 0; s < positions; s++) start[s + 2] += start[s + 1];
  for (int64_t s = 0; s < size; s++) {
    for (int64_t o = 0; o < channels; o++) {
      int32_t position = where[s * channels + o];
      if (position < 0) continue;
      int64_t e = start[position + 1]++;
      const REAL *own = left + s * steps->position + o * steps->channel;
      for (int c = 0; c < C; c++) weights[e * C + c] = own[c * steps->column];
      at[e] = (int32_t)(o * width);
    }
  }
}

// left, where, apart: as above; sources [inputs, kernel]: the output position that a position of the input reaches through a
// position of the kernel, or -1; filters [kernel, channels, width]. sizes: channels, width, places, positions, inputs, kernel.
// Writes out [samples, inputs, width, columns]. LANES numbers behind the filters' end must be readable; start has room
// for positions + 2 numbers, segments for `kernel` of them.
EXPORT void NAME(send_convolution)(const REAL *left, const int32_t *where, int64_t samples, int columns,
                                   const int64_t *apart, const int64_t *sizes, const int32_t *sources, const REAL *filters,
                                   REAL *out, int32_t *start, int32_t *at, REAL *weights, void *room) {
  int64_t channels = sizes[0], width = sizes[1], inputs = sizes[4], kernel = sizes[5];
  Steps steps = {apart[0], apart[1], apart[2], apart[3]};
  Segment *segments = room;
  int64_t vectors = (width + LANES - 1) / LANES;
  int most = NAME(vectors_at_once)(columns);
  int64_t strips = (vectors + most - 1) / most;
  V found[HELD];
  for (int64_t n = 0; n < samples; n++) {
    const int32_t *chosen = where + n * sizes[2] * channels;
    NAME(sort_entries)(left + n * steps.sample, chosen, &steps, columns, sizes, start, at, weights);
    for (int64_t i = 0; i < inputs; i++) {
      int64_t count = 0;
      for (int64_t k = 0; k < kernel; k++) {
        int32_t s = sources[i * kernel + k];
        if (s < 0 || start[s] == start[s + 1]) continue;
        Segment one = {filters + k * channels * width, start[s], start[s + 1]};
        segments[count++] = one;
      }
      REAL *to = out + (n * inputs + i) * width * columns;
      for (int64_t k = 0; k < strips; k++) {
        int64_t from = vectors * k / strips * LANES, L = vectors * (k + 1) / strips - vectors * k / strips;
        for (int64_t j = 0; j < count; j++) segments[j].base += from;
        NAME(run_combine)(columns, (int)L, segments, count, LANES, at, weights, found);
        for (int64_t j = 0; j < count; j++) segments[j].base -= from;
        int64_t real = width - from < L * LANES ? width - from : L * LANES;
        const REAL *flat = (const REAL *)found;
        for (int64_t j = 0; j < real; j++) {
          for (int c = 0; c < columns; c++) to[(from + j) * columns + c] = flat[c * L * LANES + j];
        }
      }
    }
  }
}
INLINE REAL NAME(sum_lanes)(V x) {
  REAL lane[LANES] __attribute__((aligned(64)));
  *(V *)lane = x;
  UNROLL for (int width = LANES / 2; width; width /= 2) {
    UNROLL for (int i = 0; i < width; i++) lane[i] += lane[i + width];
  }
  return lane[0];
}

// A convolution at some of its output positions. image [samples, image_size], filters [channels, rows, padded] with zeros
// behind each row, where [samples, places, channels]; sizes: as for square_convolution, one group. Adds to out [samples,
// places, channels]. LANES numbers behind the image's end must be readable, and finite.
EXPORT void NAME(gather_convolution)(const REAL *image, const REAL *filters, const int32_t *where, int64_t samples,
                                     const int64_t *sizes, const int32_t *places, const int32_t *starts, REAL *out) {
  int64_t channels = sizes[1], size = sizes[3], parts = sizes[4], rows = sizes[5], row_step = sizes[6], padded = sizes[8];
  int64_t length = (sizes[7] + LANES - 1) / LANES * LANES;
  for (int64_t n = 0; n < samples; n++) {
    for (int64_t k = n * size * channels; k < (n + 1) * size * channels; k++) {
      if (where[k] < 0) continue;
      const REAL *own = image + n * sizes[2] + places[where[k]], *filter = filters + k % channels * parts * rows * padded;
      V even = 0, odd = 0;
      for (int64_t part = 0; part < parts; part++) {
        for (int64_t row = 0; row < rows; row++, filter += padded) {
          const REAL *p = own + starts[part] + row * row_step;
          int64_t j = 0;
          for (; j + 2 * LANES <= length; j += 2 * LANES) {
            even = FMA(NAME(load)(p + j), NAME(load)(filter + j), even);
            odd = FMA(NAME(load)(p + j + LANES), NAME(load)(filter + j + LANES), odd);
          }
          if (j < length) even = FMA(NAME(load)(p + j), NAME(load)(filter + j), even);
        }
      }
      out[k] += NAME(sum_lanes)(even + odd);
    }
  }
}
#undef Segment
#undef Steps
#undef HELD
#undef MOST_COLUMNS
#undef MOST_VECTORS

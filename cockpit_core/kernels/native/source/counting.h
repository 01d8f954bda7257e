// Counts alone: products of two factors that are never stored, and pairs of a gradient and its parameter.

// Round a float32 product once to bfloat16 (kind 1) or float16 (kind 2), to nearest even; kind 0 leaves it.
INLINE V NAME(round_product)(V x, int kind) {
#if MANTISSA == 23
  if (kind == 0) return x;
  I all = (I)x, size = all & 0x7FFFFFFF, finite = size < 0x7F800000;
  if (kind == 1) return NAME(pick)(finite, (V)((all + 0x7FFF + ((all >> 16) & 1)) & ~0xFFFF), x);
  V normal = (V)((all + 0xFFF + ((all >> 13) & 1)) & ~0x1FFF);
  V small = (x + 0.75f) - 0.75f;  // below 2^-14 float16 is a fixed-point number of 2^-24
  V infinite = (V)((all & (I)(WHOLE)0x80000000) | 0x7F800000);
  V found = NAME(pick)(size < 0x38800000, small, NAME(pick)(size >= 0x477FF000, infinite, normal));
  return NAME(pick)(finite, found, x);
#else
  return x;
#endif
}

INLINE REAL NAME(round_one)(REAL x, int kind) { return NAME(round_product)(NAME(splat)(x), kind)[0]; }

// One row of factors: its extremes tell where its products with any other factor lie.
typedef struct {
  REAL largest, smallest, low, high;  // two magnitudes, the second of what is not zero; and the ends, or 0 if that is beyond
  int64_t positive, negative;
  int finite;
} NAME(Row);
#define Row NAME(Row)

INLINE Row NAME(look_at)(const REAL *values, int64_t size) {
  const V infinite = NAME(splat)((REAL)__builtin_inf());
  V low = infinite, high = -infinite, smallest = infinite;
  I positive = 0, negative = 0, strange = 0;
  for (int64_t j = 0; j < size; j += LANES) {
    V x = 0;
    if (j + LANES <= size) x = NAME(load)(values + j);
    else for (int i = 0; i < size - j; i++) x[i] = values[j + i];
    V magnitude = __builtin_elementwise_abs(x);
    positive -= x > (REAL)0, negative -= x < (REAL)0;
    strange |= ~((x - x) == (REAL)0);
    low = NAME(pick)(x < low, x, low), high = NAME(pick)(x > high, x, high);
    smallest = NAME(pick)((magnitude < smallest) & (magnitude > (REAL)0), magnitude, smallest);
  }
  Row row = {0, (REAL)__builtin_inf(), 0, 0, 0, 0, NAME(bits)(strange) == 0};
  for (int i = 0; i < LANES; i++) {
    row.positive += positive[i], row.negative += negative[i];
    row.low = low[i] < row.low ? low[i] : row.low, row.high = high[i] > row.high ? high[i] : row.high;
    row.smallest = smallest[i] < row.smallest ? smallest[i] : row.smallest;
  }
  row.largest = -row.low > row.high ? -row.low : row.high;
  return row;
}

// Do all products with this factor lie next to zero, each on the side of its sign? Rounding is monotone: two products tell.
INLINE int NAME(is_near)(REAL factor, const Row *row, int kind, const Rule *r) {
  REAL size = factor < 0 ? -factor : factor;
  if (r->near == 0 || !row->finite || !(size - size == 0)) return 0;
  if (size == 0 || row->largest == 0) return 1;
  if (!(NAME(round_one)(size * row->largest, kind) * r->scale < r->near)) return 0;
  return NAME(round_one)(size * row->smallest, kind) * r->scale > 0;  // else one has lost its sign
}

// Do all products with this factor lie in the bins that are compared with, not looked up?
INLINE int NAME(is_around)(REAL factor, const Row *row, int kind, const Rule *r) {
  REAL size = factor < 0 ? -factor : factor;
  return NAME(round_one)(size * row->largest, kind) * r->scale < r->around;
}

// Sort in increasing order, by the bits: those of negative numbers turned round, those of the others behind them.
static void NAME(sort)(REAL *values, int64_t size, UNSIGNED *keys, UNSIGNED *other) {
  const UNSIGNED top = (UNSIGNED)1 << (8 * sizeof(REAL) - 1);
  uint32_t starts[sizeof(REAL)][256];
  for (int pass = 0; pass < (int)sizeof(REAL); pass++)
    for (int digit = 0; digit < 256; digit++) starts[pass][digit] = 0;
  for (int64_t j = 0; j < size; j++) {
    UNSIGNED bits = __builtin_bit_cast(UNSIGNED, values[j]);
    keys[j] = bits & top ? ~bits : bits | top;
    for (int pass = 0; pass < (int)sizeof(REAL); pass++) starts[pass][keys[j] >> (8 * pass) & 255]++;
  }
  for (int pass = 0; pass < (int)sizeof(REAL); pass++) {
    uint32_t total = 0, largest = 0;
    for (int digit = 0; digit < 256; digit++) {
      uint32_t count = starts[pass][digit];
      largest = count > largest ? count : largest;
      starts[pass][digit] = total, total += count;
    }
    if (largest == size) continue;  // the same digit everywhere
    for (int64_t j = 0; j < size; j++) other[starts[pass][keys[j] >> (8 * pass) & 255]++] = keys[j];
    UNSIGNED *swap = keys;
    keys = other, other = swap;
  }
  for (int64_t j = 0; j < size; j++)
    values[j] = __builtin_bit_cast(REAL, keys[j] & top ? (UNSIGNED)(keys[j] & ~top) : (UNSIGNED)~keys[j]);
}

INLINE WHOLE NAME(category)(REAL factor, REAL value, int kind, const Rule *r) {
  return NAME(categories)(NAME(round_product)(NAME(splat)(factor * value), kind), r)[0];
}

// A sorted row's products are sorted too, and so are their categories: each is one range, whose end is found by bisection
// with the real predicate.
INLINE void NAME(bisect)(REAL factor, const REAL *row, int64_t size, int kind, const Rule *r, int64_t *table) {
  WHOLE here = NAME(category)(factor, row[0], kind, r), final = NAME(category)(factor, row[size - 1], kind, r);
  int64_t position = 0;
  while (here != final) {
    int64_t inside = position, outside = size - 1;
    while (outside - inside > 1) {
      int64_t middle = (inside + outside) >> 1;
      if (NAME(category)(factor, row[middle], kind, r) == here) inside = middle;
      else outside = middle;
    }
    table[here] += outside - position;
    position = outside;
    here = NAME(category)(factor, row[position], kind, r);
  }
  table[final] += size - position;
}

INLINE void NAME(add_products)(Tally *tally, REAL factor, const REAL *row, int64_t size, int kind, int how) {
  V f = NAME(splat)(factor);
  Around around = {(I)0, 0};
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES)
    NAME(add)(tally, &around, NAME(round_product)(f * NAME(load)(row + j), kind), ALL_LANES, how);
  if (j < size)
    NAME(add)(tally, &around, NAME(round_product)(f * NAME(load)(row + j), kind), ((uint32_t)1 << (size - j)) - 1, how);
  if (how == 1) NAME(fold)(tally, &around);
}

// The same where `is_around` holds.
INLINE void NAME(add_around)(Tally *tally, REAL factor, const REAL *row, int64_t size, int kind) {
  V f = NAME(splat)(factor);
  const REAL scale = tally->rule->scale;
  Around around = {(I)0, 0};
  int64_t j = 0;
  while (j + LANES <= size) {
    int64_t stop = j + FULL * LANES < size ? j + FULL * LANES : size;
    for (; j + LANES <= stop; j += LANES)
      around.bits += NAME(mark_bins)(NAME(round_product)(f * NAME(load)(row + j), kind) * scale);
    NAME(fold)(tally, &around);
  }
  if (j == size) return;
  NAME(add)(tally, &around, NAME(round_product)(f * NAME(load)(row + j), kind), ((uint32_t)1 << (size - j)) - 1, 1);
  NAME(fold)(tally, &around);
}

INLINE int64_t NAME(drop_zeros)(const REAL *values, int64_t size, int64_t nonzero, REAL *row) {
  int64_t kept = 0;
  if (nonzero == size) {  // there are none
    for (; kept < size; kept++) row[kept] = values[kept];
  } else {
    for (int64_t j = 0; j < size; j++) row[kept] = values[j], kept += values[j] != 0;
  }
  for (int64_t j = kept; j < kept + LANES; j++) row[j] = 0;
  return kept;
}

#define WORTH_SORTING 12  // rows that a sorted one would serve
#define LONG_ROW 64
#define MANY 16384  // products, for which buckets pay

// Does a sorted row help? `price`: of one search, in elements that are counted one by one.
INLINE int NAME(is_narrow)(REAL factor, const Row *row, int64_t kept, int kind, const Rule *r) {
  if (kept <= LONG_ROW) return 0;
  int64_t price = 4 * (64 - __builtin_clzll((uint64_t)kept));
  int64_t span = NAME(category)(factor, row->high, kind, r) - NAME(category)(factor, row->low, kind, r);
  return price * (span < 0 ? -span : span) <= kept;
}

#if MANTISSA == 23
#include "products.h"

// What `count_outer` wants to know of logarithmic bins, once; returns how many bytes that takes.
EXPORT int64_t NAME(describe_products)(const double *given, int kind, void *memory) {
  Rule rule;
  if (memory == 0) return BUCKETS * (int64_t)sizeof(Segments);
  rule = NAME(read_rule)(given);
  plan_products(memory, kind, &rule);
  return 0;
}

// All products in logarithmic bins; what is not finite, or may leave the normal numbers, one by one.
static void count_products(const float *b, const float *a, int64_t samples, int64_t out, int64_t in, int kind,
                           const Rule *rule, int64_t *table, int64_t size, float *memory, const Segments *runs) {
  Products plan;
  Tally tally = {rule, table, size};
  float *sorted = memory, *rest = memory + in + LANES, *nonzero = memory + 2 * (in + LANES);
  plan.of = runs;
  for (int k = 0; k < 2 * rule->per_octave; k++)
    for (int sum = 0; sum < SUMS; sum++) plan.sums[k][0][sum] = plan.sums[k][1][sum] = 0;
  for (int64_t n = 0; n < samples; n++) {
    const float *values = a + n * in;
    Row row = NAME(look_at)(values, in);
    int64_t kept = row.positive + row.negative, small = 0;
    int top = (int)(__builtin_bit_cast(uint32_t, row.largest) >> 23);
    int bottom = (int)(__builtin_bit_cast(uint32_t, row.smallest) >> 23);
    bottom = bottom > top - OCTAVES + 1 ? bottom : top - OCTAVES + 1;
    plan.least = SUMS, plan.most = 0;
    if (row.finite && kept) {
      NAME(drop_zeros)(values, in, kept, nonzero);
      small = sort_products(&plan, nonzero, kept, top, bottom, sorted, rest);
    }
    for (int64_t i = 0; i < out; i++) {
      float factor = b[n * out + i];
      if (!row.finite || factor - factor != 0) {
        for (int64_t j = 0; j < in; j++) table[NAME(category)(factor, values[j], kind, rule)]++;
        continue;
      }
      table[rule->zero] += factor == 0 ? in : in - kept;
      if (factor == 0 || kept == 0) continue;
      if (small) NAME(add_products)(&tally, factor, rest, small, kind, 2);
      if (is_safe(factor, bottom, top, kind)) add_factor(&plan, factor, top, sorted, kind, &tally);
      else NAME(add_products)(&tally, factor, sorted, kept - small, kind, 2);
    }
    flush_products(&plan, rule, table);
  }
}
#endif

// All products b[n, i] a[n, j]: b [samples, out], a [samples, in]; `memory` holds 3 (in + LANES) numbers, `later` out;
// `runs` is what `describe_products` has written, or nothing.
// Zeros are counted at once, rows whose products all lie next to zero too; long rows that fall into few bins by bisection,
// if there are so many of them that sorting pays.
EXPORT void NAME(count_outer)(const REAL *b, const REAL *a, int64_t samples, int64_t out, int64_t in, int kind,
                              const double *given, int64_t *table, int64_t size, REAL *memory, int32_t *later, const void *runs) {
  Rule rule = NAME(read_rule)(given);
  Tally tally = {&rule, table, size};
#if MANTISSA == 23
  if (runs && in > LONG_ROW && in * out > MANY) {
    count_products(b, a, samples, out, in, kind, &rule, table, size, memory, runs);
    return;
  }
#endif
  int how = rule.near > 0 ? 1 : 2;
  WHOLE zero = NAME(categories)((V)0, &rule)[0];
  for (int64_t n = 0; n < samples; n++) {
    const REAL *factors = b + n * out, *values = a + n * in;
    int64_t below = 0, above = 0, waiting = 0, narrow = 0;
    Row row = NAME(look_at)(values, in);
    int64_t kept = row.positive + row.negative;
    for (int64_t i = 0; i < out; i++) {
      REAL factor = factors[i];
      if (row.finite && (factor == 0 || (kept == 0 && factor - factor == 0))) {
        table[zero] += in;
      } else if (NAME(is_near)(factor, &row, kind, &rule)) {
        int64_t negative = factor > 0 ? row.negative : row.positive;
        below += negative, above += in - negative;
      } else if (row.finite && factor - factor == 0) {
        later[waiting++] = (int32_t)i;
        narrow += NAME(is_narrow)(factor, &row, kept, kind, &rule);
      } else {  // 0 * inf is NaN: one by one, zeros too
        for (int64_t j = 0; j < in; j++) table[NAME(category)(factor, values[j], kind, &rule)]++;
      }
    }
    int sorted = narrow >= WORTH_SORTING;
    if (waiting) NAME(drop_zeros)(values, in, kept, memory);
    if (sorted) NAME(sort)(memory, kept, (UNSIGNED *)(memory + in + LANES), (UNSIGNED *)(memory + 2 * in + LANES));
    for (int64_t k = 0; k < waiting; k++) {
      REAL factor = factors[later[k]];
      table[zero] += in - kept;
      if (sorted && NAME(is_narrow)(factor, &row, kept, kind, &rule)) {
        NAME(bisect)(factor, memory, kept, kind, &rule, table);
      } else if (how == 1 && NAME(is_around)(factor, &row, kind, &rule)) {
        NAME(add_around)(&tally, factor, memory, kept, kind);  // whatever the factors before it have met
      } else {
        if (NAME(choose_way)(&tally, how) == 1) NAME(add_products)(&tally, factor, memory, kept, kind, 1);
        else NAME(add_products)(&tally, factor, memory, kept, kind, 2);
        NAME(note_way)(&tally, kept);
      }
    }
    if (how == 1) table[rule.shift - 1] += below, table[rule.shift] += above;
  }
  NAME(flush)(&tally);
}
#undef WORTH_SORTING
#undef LONG_ROW
#undef MANY

// ---- pairs of a gradient and its parameter

// How often the elements of a piece were next to zero, and how often negative there; everything else is in the table,
// [gradient's categories, parameter's].
typedef struct {
  const Rule *rule;
  int64_t *table, columns;
  const int16_t *parameter;
  WHOLE near[PIECE], negative[PIECE];
} NAME(Pairs);
#define Pairs NAME(Pairs)

INLINE void NAME(clear_pairs)(Pairs *pairs, int64_t size) {
  for (int64_t j = 0; j < size; j += LANES) *(NAME(IU) *)(pairs->near + j) = *(NAME(IU) *)(pairs->negative + j) = (I)0;
}

INLINE void NAME(look_up_pairs)(Pairs *pairs, V g, int64_t j, uint32_t lanes) {
  WHOLE found[LANES] __attribute__((aligned(64)));
  *(I *)found = NAME(categories)(g, pairs->rule);
  for (; lanes; lanes &= lanes - 1) {
    int lane = __builtin_ctz(lanes);
    pairs->table[found[lane] * pairs->columns + pairs->parameter[j + lane]]++;
  }
}

INLINE void NAME(add_pairs)(Pairs *pairs, V g, int64_t j, uint32_t lanes) {
  V t = g * pairs->rule->scale;
  I inside = __builtin_elementwise_abs(t) < pairs->rule->near;
  *(NAME(IU) *)(pairs->near + j) -= inside;
  *(NAME(IU) *)(pairs->negative + j) -= (t < (REAL)0) & inside;
  uint32_t cold = ~NAME(bits)(inside) & lanes;
  if (__builtin_expect(cold != 0, 0)) NAME(look_up_pairs)(pairs, g, j, cold);
}

INLINE void NAME(flush_pairs)(Pairs *pairs, int64_t size, int64_t more) {  // `more`: so many were near, for each element
  if (pairs->rule->near == 0) return;
  int64_t *below = pairs->table + (pairs->rule->shift - 1) * pairs->columns, *above = below + pairs->columns;
  for (int64_t j = 0; j < size; j++) {
    below[pairs->parameter[j]] += pairs->negative[j];
    above[pairs->parameter[j]] += more + pairs->near[j] - pairs->negative[j];
  }
}

// `factor * values`, or the values themselves.
INLINE void NAME(add_row)(Pairs *pairs, const REAL *values, int64_t size, REAL factor, int product, int kind) {
  V f = NAME(splat)(factor);
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES) {
    V x = NAME(load)(values + j);
    NAME(add_pairs)(pairs, product ? NAME(round_product)(f * x, kind) : x, j, ALL_LANES);
  }
  if (j == size) return;
  V x = 0;
  for (int i = 0; i < size - j; i++) x[i] = values[j + i];
  x = product ? NAME(round_product)(f * x, kind) : x;
  I inside = NAME(below)(size - j);
  V t = x * pairs->rule->scale;
  I near = (__builtin_elementwise_abs(t) < pairs->rule->near) & inside;
  for (int i = 0; i < size - j; i++) {
    pairs->near[j + i] -= near[i];
    pairs->negative[j + i] += near[i] && t[i] < 0;
  }
  uint32_t cold = NAME(bits)(~near & inside);
  if (cold) NAME(look_up_pairs)(pairs, x, j, cold);
}

// values [rows, columns] with `stride` between rows, parameter [columns]; table [gradient's categories, categories].
EXPORT void NAME(count_pairs)(const REAL *values, int64_t stride, int64_t rows, int64_t columns, const int16_t *parameter,
                              const double *given, int64_t *table, int64_t categories) {
  Rule rule = NAME(read_rule)(given);
  Pairs pairs;
  pairs.rule = &rule, pairs.table = table, pairs.columns = categories;
  for (int64_t start = 0; start < columns; start += PIECE) {
    int64_t size = columns - start < PIECE ? columns - start : PIECE;
    pairs.parameter = parameter + start;
    NAME(clear_pairs)(&pairs, size);
    for (int64_t n = 0; n < rows; n++) NAME(add_row)(&pairs, values + n * stride + start, size, 0, 0, 0);
    NAME(flush_pairs)(&pairs, size, 0);
  }
}

#define ROWS_AT(samples, in) ((2 * (samples) * (in) + 63) / 64 * 64)

// The rows [first, last) of all products b[n, i] a[n, j] with parameter [out, in]. Products that lie next to zero are
// counted by bytes of signs: `signs` is what `describe_rows` has written.
EXPORT void NAME(count_outer_pairs)(const REAL *b, const REAL *a, int64_t samples, int64_t out, int64_t in, int kind,
                                    const int16_t *parameter, const double *given, int64_t *table, int64_t categories,
                                    int64_t first, int64_t last, const uint8_t *signs) {
  Rule rule = NAME(read_rule)(given);
  Pairs pairs;
  pairs.rule = &rule, pairs.table = table, pairs.columns = categories;
  uint8_t bytes[PIECE] __attribute__((aligned(64)));
  for (int64_t start = 0; start < in; start += PIECE) {
    int64_t size = in - start < PIECE ? in - start : PIECE;
    for (int64_t i = first; i < last; i++) {
      int64_t rows = 0, pending = 0;
      pairs.parameter = parameter + i * in + start;
      NAME(clear_pairs)(&pairs, size);
      for (int64_t j = 0; j < size; j += BYTES) *(I *)(bytes + j) = (I)0;
      for (int64_t n = 0; n < samples; n++) {
        REAL factor = b[n * out + i];
        const Row *row = (const Row *)(signs + ROWS_AT(samples, in)) + n;
        if (!NAME(is_near)(factor, row, kind, &rule)) {
          NAME(add_row)(&pairs, a + n * in + start, size, factor, 1, kind);
          continue;
        }
        rows++;
        if (factor == 0) continue;
        const uint8_t *own = signs + ((factor < 0 ? samples : 0) + n) * in + start;
        for (int64_t j = 0; j < size; j++) bytes[j] += own[j];
        if (++pending == 255) {
          for (int64_t j = 0; j < size; j++) pairs.negative[j] += bytes[j], bytes[j] = 0;
          pending = 0;
        }
      }
      for (int64_t j = 0; j < size; j++) pairs.negative[j] += bytes[j];
      NAME(flush_pairs)(&pairs, size, rows);
    }
  }
}

// What `count_outer_pairs` needs to know of a [samples, in]: signs as bytes, then one Row of each sample.
EXPORT int64_t NAME(describe_rows)(const REAL *a, int64_t samples, int64_t in, uint8_t *signs) {
  if (signs == 0) return ROWS_AT(samples, in) + samples * (int64_t)sizeof(Row);
  for (int64_t k = 0; k < samples * in; k++) signs[k] = a[k] < 0, signs[samples * in + k] = a[k] > 0;
  for (int64_t n = 0; n < samples; n++) ((Row *)(signs + ROWS_AT(samples, in)))[n] = NAME(look_at)(a + n * in, in);
  return 0;
}
#undef ROWS_AT
#undef Pairs
#undef Row

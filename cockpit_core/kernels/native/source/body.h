// One type's kernels; see kernels.c for the names that stand for it.
typedef REAL NAME(V) __attribute__((ext_vector_type(LANES)));
typedef WHOLE NAME(I) __attribute__((ext_vector_type(LANES)));
typedef _Bool NAME(B) __attribute__((ext_vector_type(LANES)));
#if LANES >= 4
typedef uint16_t NAME(S) __attribute__((ext_vector_type(LANES)));
typedef uint64_t NAME(Q) __attribute__((ext_vector_type(LANES / 4)));
#endif
typedef NAME(V) NAME(VU) __attribute__((aligned(sizeof(REAL))));
typedef NAME(I) NAME(IU) __attribute__((aligned(sizeof(REAL))));
#define V NAME(V)
#define I NAME(I)

// The rounding rule of cockpit_core/kernels/bins.py. `near`: |t| below it is one of the two bins next to zero; 0 where
// zero is no inner edge, or where bins are logarithmic. `around`: the same of the eight next to zero, or `near` where there
// are fewer.
typedef struct {
  REAL anchor, scale, low, high, first, last, near, around;
  WHOLE shift, above;
  int logarithmic, per_octave;
  WHOLE lowest, steps, zero;    // of logarithmic bins: the smallest exponent (biased), bins of one sign, zero's category
  WHOLE thresholds[8];          // mantissas at which the bins of an octave begin, but the first
} NAME(Rule);
#define Rule NAME(Rule)

INLINE Rule NAME(read_rule)(const double *given) {
  Rule r;
  r.logarithmic = given[0] != 0;
  r.anchor = (REAL)given[1], r.scale = (REAL)given[2], r.low = (REAL)given[3], r.high = (REAL)given[4];
  r.above = (WHOLE)given[6] + 1, r.shift = (WHOLE)given[5] + 1;
  r.first = (REAL)-given[5], r.last = (REAL)(given[6] - 1 - given[5]), r.near = (REAL)given[7];
  r.around = r.near > 0 && given[5] >= 5 && given[5] <= given[6] - 5 ? 4 : r.near;
  r.per_octave = (int)given[8], r.lowest = (WHOLE)given[9] + BIAS;
  r.steps = (WHOLE)given[10], r.zero = r.steps + 1;
  for (int i = 0; i < 8; i++) r.thresholds[i] = (WHOLE)given[11 + i];
  return r;
}

INLINE V NAME(load)(const REAL *p) { return *(const NAME(VU) *)p; }
INLINE V NAME(pick)(I mask, V yes, V no) { return (V)(((I)yes & mask) | ((I)no & ~mask)); }
INLINE I NAME(choose)(I mask, I yes, I no) { return (yes & mask) | (no & ~mask); }
INLINE V NAME(splat)(REAL x) { return (V)x; }
// The sum of all lanes in double precision, by halves: one after the other, each addition would wait for the last.
typedef double NAME(D) __attribute__((ext_vector_type(LANES)));
INLINE double NAME(add_lanes)(V x) {
  NAME(D) all = __builtin_convertvector(x, NAME(D));
#if LANES == 2
  return all.x + all.y;
#else
  __auto_type half = all.lo + all.hi;
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
INLINE uint32_t NAME(bits)(I mask) {
  NAME(B) truth = __builtin_convertvector(mask, NAME(B));
#if BYTES == 64 && MANTISSA == 23
  return __builtin_bit_cast(uint16_t, truth);
#elif LANES == 8
  return __builtin_bit_cast(uint8_t, truth);
#else
  uint32_t found = 0;
  UNROLL for (int i = 0; i < LANES; i++) found |= (uint32_t)truth[i] << i;
  return found;
#endif
}
INLINE I NAME(below)(int64_t count) {  // the first `count` lanes
  I index;
  UNROLL for (int i = 0; i < LANES; i++) index[i] = i;
  return index < (I)(WHOLE)(count < LANES ? count : LANES);
}

INLINE I NAME(linear)(V v, const Rule *r) {
  V t = (v - r->anchor) * r->scale;
  t = NAME(pick)(t >= r->first, t, NAME(splat)(r->first));  // also NaN
  t = NAME(pick)(t <= r->last, t, NAME(splat)(r->last));
  I whole = __builtin_convertvector(t, I);
  I c = whole + (__builtin_convertvector(whole, V) > t) + r->shift;
  c = NAME(choose)(v < r->low, (I)0, c);
  return NAME(choose)(v > r->high, (I)r->above, c);
}

INLINE I NAME(logarithmic)(V v, const Rule *r) {
  I all = (I)v, sign = all >> (8 * (int)sizeof(REAL) - 1);  // -1 for negative numbers
  I size = all & (WHOLE)(~(UNSIGNED)0 >> 1);
  I mantissa = size & (WHOLE)(((UNSIGNED)1 << MANTISSA) - 1);
  I step = ((size >> MANTISSA) - r->lowest) * (WHOLE)r->per_octave;
  for (int i = 0; i < r->per_octave - 1; i++) step -= mantissa >= r->thresholds[i];
  I is_zero = step < 0;
  step = NAME(choose)(step >= r->steps, (I)(r->steps - 1), step) + 1;
  return r->zero + NAME(choose)(is_zero, (I)0, (step ^ sign) - sign);
}

INLINE I NAME(categories)(V v, const Rule *r) {
  I c = r->logarithmic ? NAME(logarithmic)(v, r) : NAME(linear)(v, r);
  I strange = ~((v - v) == (REAL)0);
  if (__builtin_expect(NAME(bits)(strange) != 0, 0)) {
    c = NAME(choose)(v != v, (I)(r->above + 1), c);
    c = NAME(choose)(v == (REAL)__builtin_inf(), (I)(r->above + 2), c);
    c = NAME(choose)(v == (REAL)-__builtin_inf(), (I)(r->above + 3), c);
  }
  return c;
}

// Counts of one share of the work. Four tables in turn, because a counter that is incremented twice in a row waits for
// itself. Numbers in one of the eight bins around zero, most of all, are not looked up: each lane has four bits for each of
// these bins (`Around`), which are added to bytes before they are full.
typedef struct {
  I bits;
  int used;
} NAME(Around);
#define Around NAME(Around)

typedef struct {
  const Rule *rule;
  int64_t *table;  // [TABLES, size]
  int64_t size;
  I even, odd;          // bytes: those of bins 0, 2, -4, -2 and of 1, 3, -3, -1 (counted from zero), lane by lane
  int folded;           // how often bits were added to the bytes
  int64_t spare, cold;  // lanes that held no number and were counted as zeros; numbers that were looked up
  int wide;             // so many pieces are looked up at once: numbers are spread over many bins
} NAME(Tally);
#define Tally NAME(Tally)

#define ALL_LANES ((uint32_t)(((uint64_t)1 << LANES) - 1))

INLINE void NAME(look_up)(Tally *tally, V g, uint32_t lanes) {
  WHOLE found[LANES] __attribute__((aligned(64)));
  *(I *)found = NAME(categories)(g, tally->rule);
  int64_t *table = tally->table;  // a copy: writing to the table could change the tally, for all the compiler knows
  const int64_t size = tally->size;
#if LANES >= 4
  if (lanes == ALL_LANES) {  // four 16-bit places to a register: reading back what was just stored takes longer
    I own;
    UNROLL for (int i = 0; i < LANES; i++) own[i] = (WHOLE)((i & (TABLES - 1)) * size);
    NAME(S) places = __builtin_convertvector(*(I *)found + own, NAME(S));
    NAME(Q) packed = __builtin_bit_cast(NAME(Q), places);
    UNROLL for (int q = 0; q < LANES / 4; q++) {
      uint64_t four = packed[q];
      table[four & 0xFFFF]++, table[four >> 16 & 0xFFFF]++, table[four >> 32 & 0xFFFF]++, table[four >> 48]++;
    }
    return;
  }
#endif
  for (; lanes; lanes &= lanes - 1) {
    int lane = __builtin_ctz(lanes);
    table[(lane & (TABLES - 1)) * size + found[lane]]++;
  }
}
static __attribute__((noinline)) void NAME(add_cold)(Tally *tally, V g, uint32_t lanes) { NAME(look_up)(tally, g, lanes); }

#define FULL 15   // what four bits hold
#define FOLDS 17  // how often that fits a byte
#define SPREAD 16 // of so many numbers one is looked up: then it is faster to look up all
#define PIECES 15 // that are looked up at once, until it is tried again
#if MANTISSA == 23
#define ROUNDER 0x1.8p23f  // added to a small number, it leaves the nearest whole one in the lowest bits
#else
#define ROUNDER 0x1.8p52
#endif

static __attribute__((noinline)) void NAME(spill)(Tally *tally) {
  int64_t counts[8] = {0};
  for (int i = 0; i < LANES; i++)
    for (int k = 0; k < 4; k++)
      counts[2 * k] += tally->even[i] >> 8 * k & 255, counts[2 * k + 1] += tally->odd[i] >> 8 * k & 255;
  for (int k = 0; k < 8; k++)  // bins that are not there have no counts
    if (counts[k]) tally->table[tally->rule->shift + (k < 4 ? k : k - 8)] += counts[k];
  tally->even = tally->odd = (I)0, tally->folded = 0;
}

INLINE void NAME(fold)(Tally *tally, Around *around) {
  const I low = (I)(WHOLE)((UNSIGNED)0x0F0F0F0F);
  tally->even += around->bits & low, tally->odd += (around->bits >> 4) & low;
  around->bits = (I)0, around->used = 0;
  if (++tally->folded == FOLDS) NAME(spill)(tally);
}

// One in the four bits of the bin, of the eight around zero, in which each of these lies (|t| below 4): three bits of t rounded
// down tell which.
INLINE I NAME(mark_bins)(V t) {
#if BYTES == 64  // an addition that rounds down, and a table in a register
  typedef REAL Reals __attribute__((vector_size(64)));
#if MANTISSA == 23
  typedef int Ints __attribute__((vector_size(64)));
  const Ints marks = {1, 1 << 4, 1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28,
                      1, 1 << 4, 1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28};
  Reals moved = __builtin_ia32_addps512((Reals)t, (Reals)NAME(splat)((REAL)ROUNDER), 9);
  return (I)__builtin_ia32_permvarsi512(marks, (Ints)moved);
#else
  typedef long long Longs __attribute__((vector_size(64)));
  const Longs marks = {1, 1 << 4, 1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28};
  Reals moved = __builtin_ia32_addpd512((Reals)t, (Reals)NAME(splat)((REAL)ROUNDER), 9);
  return (I)__builtin_ia32_permvardi512(marks, (Longs)moved);
#endif
#else
  V moved = t + (REAL)ROUNDER;
  I bin = (I)moved + ((moved - (REAL)ROUNDER) > t);
  return (I)(WHOLE)1 << ((bin << 2) & 31);
#endif
}

// `how`: 1 compares with the bins around zero first, 2 looks every number up. Lanes that do not count hold zero. What is
// `around` is folded when all is added.
INLINE void NAME(add)(Tally *tally, Around *around, V g, uint32_t lanes, int how) {
  if (how == 2) {
    NAME(look_up)(tally, g, lanes);
    return;
  }
  V t = g * tally->rule->scale;
  I inside = __builtin_elementwise_abs(t) < tally->rule->around;
  around->bits += NAME(mark_bins)(t) & inside;
  uint32_t cold = ~NAME(bits)(inside) & lanes;
  if (__builtin_expect(cold != 0, 0)) {
    NAME(add_cold)(tally, g, cold);
    tally->cold += __builtin_popcount(cold);
  }
  if (lanes != ALL_LANES) tally->spare += LANES - __builtin_popcount(lanes);
  if (++around->used == FULL) NAME(fold)(tally, around);
}

// How is the next piece counted, and was it so far (`size` numbers)?
INLINE int NAME(choose_way)(Tally *tally, int how) { return how == 1 && tally->wide > 0 ? tally->wide--, 2 : how; }
INLINE void NAME(note_way)(Tally *tally, int64_t size) {
  if (__builtin_expect(tally->cold * SPREAD > size, 0)) tally->wide = PIECES;
  tally->cold = 0;
}

INLINE void NAME(flush)(Tally *tally) {
  if (tally->rule->near == 0) return;
  NAME(spill)(tally);
  tally->table[tally->rule->shift] -= tally->spare;
  tally->spare = 0;
}

// ---- one pass over stored gradients: norms, up to two projections, counts

#define PIECE 2048  // elements whose sums stay in the type itself, and whose directions stay in the first cache

INLINE void NAME(reduce_piece)(const REAL *g, const REAL *d0, const REAL *d1, int64_t size, REAL scale, int counts,
                               Tally *tally, double *norm, double *dots) {
  V s = NAME(splat)(scale), squares = 0, first = 0, second = 0;
  Around around = {(I)0, 0};
  int64_t j = 0;
  for (; j + LANES <= size; j += LANES) {
    V x = NAME(load)(g + j) * s;
    squares = FMA(x, x, squares);
    if (d0) first = FMA(x, NAME(load)(d0 + j), first);
    if (d1) second = FMA(x, NAME(load)(d1 + j), second);
    if (counts) NAME(add)(tally, &around, x, ALL_LANES, counts);
  }
  if (j < size) {
    V x = 0, a = 0, b = 0;
    for (int i = 0; i < size - j; i++) {
      x[i] = g[j + i] * scale;
      if (d0) a[i] = d0[j + i];
      if (d1) b[i] = d1[j + i];
    }
    squares = FMA(x, x, squares), first = FMA(x, a, first), second = FMA(x, b, second);
    if (counts) NAME(add)(tally, &around, x, ((uint32_t)1 << (size - j)) - 1, counts);
  }
  if (counts == 1) NAME(fold)(tally, &around);
  double n = 0, a = 0, b = 0;
  UNROLL for (int i = 0; i < LANES; i++) n += squares[i], a += first[i], b += second[i];
  *norm += n, dots[0] += a, dots[1] += b;
}

// G [rows, columns] with `stride` between rows, D [directions, columns] with `apart` between them; adds to norms [rows],
// dots [rows, 2] and, if there is a rule, to the table [TABLES, size].
EXPORT void NAME(reduce_block)(const REAL *G, int64_t stride, int64_t rows, int64_t columns, double scale, const REAL *D,
                               int64_t apart, int directions, const double *given, int64_t *table, int64_t size,
                               double *norms, double *dots) {
  Rule rule;
  Tally tally = {&rule, table, size};
  if (given) rule = NAME(read_rule)(given);
  int how = given ? (rule.near > 0 ? 1 : 2) : 0;
  for (int64_t start = 0; start < columns; start += PIECE) {
    int64_t piece = columns - start < PIECE ? columns - start : PIECE;
    const REAL *d0 = directions > 0 ? D + start : 0, *d1 = directions > 1 ? D + apart + start : 0;
    for (int64_t n = 0; n < rows; n++) {
      const REAL *g = G + n * stride + start;
      int way = NAME(choose_way)(&tally, how);
      if (way == 1 && d1) NAME(reduce_piece)(g, d0, d1, piece, (REAL)scale, 1, &tally, norms + n, dots + 2 * n);
      else if (way == 1) NAME(reduce_piece)(g, d0, 0, piece, (REAL)scale, 1, &tally, norms + n, dots + 2 * n);
      else if (way == 2) NAME(reduce_piece)(g, d0, d1, piece, (REAL)scale, 2, &tally, norms + n, dots + 2 * n);
      else NAME(reduce_piece)(g, d0, d1, piece, (REAL)scale, 0, &tally, norms + n, dots + 2 * n);
      NAME(note_way)(&tally, piece);
    }
  }
  if (given) NAME(flush)(&tally);
}

// Several small blocks: jobs [count, 7] are the address of G, its stride, rows and columns, the addresses of up to two
// directions (0: none), and the first of its rows in norms and dots; each has a table [TABLES, size] of its own.
EXPORT void NAME(reduce_blocks)(const int64_t *jobs, const double *scales, int64_t count, const double *given,
                                int64_t *table, int64_t size, double *norms, double *dots) {
  for (int64_t k = 0; k < count; k++, jobs += 7) {
    const REAL *G = (const REAL *)(intptr_t)jobs[0], *D = (const REAL *)(intptr_t)jobs[4];
    int directions = (jobs[4] != 0) + (jobs[5] != 0);
    int64_t apart = (jobs[5] - jobs[4]) / (int64_t)sizeof(REAL);
    NAME(reduce_block)(G, jobs[1], jobs[2], jobs[3], scales[k], D, apart, directions, given,
                       given ? table + k * TABLES * size : 0, size, norms + jobs[6], dots + 2 * jobs[6]);
  }
}
#include "convolution.h"
#include "comparing.h"
#include "dense.h"
#include "moving.h"
#include "normalised.h"
#include "columns.h"
#include "counting.h"
#include "shares.h"
#include "striding.h"
#include "outer.h"
#include "recurrent.h"
#include "grams.h"
#include "walking.h"
#undef Shape
#undef Sums
#undef PIECE
#undef ALL_LANES
#undef FULL
#undef FOLDS
#undef SPREAD
#undef PIECES
#undef ROUNDER
#undef Around
#undef Tally
#undef Rule
#undef V
#undef I

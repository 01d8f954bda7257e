// Products counted in logarithmic bins without forming most of them: exponents add, and the product of two mantissas says
// which of the following bins it is. Mantissas are put into 128 buckets; for a pair of buckets the bin is known, unless a
// limit runs through it: then, about one time in forty, the products are formed. In float32 and the half types.

#define BUCKET_BITS 7
#define BUCKETS (1 << BUCKET_BITS)
#define BUCKET_OF(bits) ((bits) >> (23 - BUCKET_BITS) & (BUCKETS - 1))
#define RUNS 48
#define OCTAVES 64  // of the factors a, from the largest down; smaller ones are counted one by one
#define SUMS 512    // sums of two exponents
#define MIXED 255

typedef int32_t Sixteen __attribute__((ext_vector_type(16), aligned(4)));

// For one bucket of the factor b: runs of buckets of a, and which bin (counted from the sum of the exponents) they give.
typedef struct {
  int32_t count;
  uint16_t bin[RUNS], from[RUNS], to[RUNS];
} Segments;

typedef struct {
  const Segments *of;
  int32_t before[(BUCKETS + 1) * 2 * OCTAVES];  // how many factors a of smaller buckets, by sign and octave in use
  int32_t sums[16][2][SUMS];                 // by bin, sign and sum of exponents
  int32_t start[BUCKETS + 1];
  int octaves;  // how many of them this sample has, rounded up
  int least, most;  // sums of exponents that occur
} Products;

INLINE float in_octave(uint32_t mantissa) { return __builtin_bit_cast(float, 127u << 23 | mantissa); }

// Two numbers between 1 and 2: how many bins beyond the first of their octave is the product?
INLINE int bin_of(float b, float a, int kind, const Rule *r) {
  return (int)(NAME(category)(b, a, kind, r) - r->zero - 1 + (r->lowest - BIAS) * r->per_octave);
}

static void plan_products(Segments *of, int kind, const Rule *given) {
  Rule rule = *given;  // of wide bins, whatever the given ones are: products of numbers between 1 and 2
  rule.lowest = BIAS, rule.steps = 2 * rule.per_octave, rule.zero = rule.steps + 1, rule.above = 2 * rule.steps + 2;
  const uint32_t width = 1u << (23 - BUCKET_BITS);
  for (uint32_t u = 0; u < BUCKETS; u++) {
    Segments *own = of + u;
    own->count = 0;
    for (uint32_t v = 0; v < BUCKETS; v++) {
      int low = bin_of(in_octave(u * width), in_octave(v * width), kind, &rule);
      int high = bin_of(in_octave((u + 1) * width - 1), in_octave((v + 1) * width - 1), kind, &rule);
      uint16_t bin = low == high ? (uint16_t)low : MIXED;
      if (own->count && own->bin[own->count - 1] == bin) {
        own->to[own->count - 1] = (uint16_t)(v + 1);
      } else {
        own->bin[own->count] = bin, own->from[own->count] = (uint16_t)v, own->to[own->count++] = (uint16_t)(v + 1);
      }
    }
  }
}

// Factors that are not zero by bucket into `sorted`, those that are too small (or not normal) into `rest`; returns how many of the latter.
static int64_t sort_products(Products *plan, const float *values, int64_t size, int top, int bottom, float *sorted, float *rest) {
  int64_t small = 0, kept = 0;
  int32_t fill[BUCKETS];
  for (int v = 0; v <= BUCKETS; v++) plan->start[v] = 0;
  const int used = plan->octaves = (top - bottom + 16) / 16 * 16;
  for (int k = 0; k < (BUCKETS + 1) * 2 * used; k += 16) *(Sixteen *)(plan->before + k) = (Sixteen)0;
  for (int64_t j = 0; j < size; j++) {
    uint32_t bits = __builtin_bit_cast(uint32_t, values[j]);
    int octave = top - (int)(bits >> 23 & 255);
    if (octave >= OCTAVES || (bits >> 23 & 255) == 0) {
      rest[small++] = values[j];
      continue;
    }
    int bucket = BUCKET_OF(bits);
    plan->start[bucket + 1]++;
    plan->before[(2 * (bucket + 1) + (int)(bits >> 31)) * used + used - 1 - octave]++;
    kept++;
  }
  for (int v = 0; v < BUCKETS; v++) {
    fill[v] = plan->start[v];
    plan->start[v + 1] += plan->start[v];
    int32_t *own = plan->before + 2 * used * v;
    for (int k = 0; k < 2 * used; k += 16) *(Sixteen *)(own + 2 * used + k) += *(Sixteen *)(own + k);
  }
  for (int64_t j = 0; j < size; j++) {
    uint32_t bits = __builtin_bit_cast(uint32_t, values[j]);
    int exponent = bits >> 23 & 255;
    if (exponent == 0 || top - exponent >= OCTAVES) continue;
    sorted[fill[BUCKET_OF(bits)]++] = values[j];
  }
  for (int64_t j = 0; j < LANES; j++) sorted[kept + j] = 0, rest[small + j] = 0;
  return small;
}

// One factor b with all of a: whole runs of buckets at once, mixed ones product by product.
INLINE void add_factor(Products *plan, float factor, int top, const float *sorted, int kind, Tally *tally) {
  uint32_t bits = __builtin_bit_cast(uint32_t, factor), sign = bits >> 31;
  const Segments *own = plan->of + BUCKET_OF(bits);
  const int used = plan->octaves;
  int lowest = (int)(bits >> 23 & 255) + top - (used - 1);  // sum of exponents of the smallest octave
  plan->least = lowest < plan->least ? lowest : plan->least;
  plan->most = lowest + used > plan->most ? lowest + used : plan->most;
  for (int k = 0; k < own->count; k++) {
    int from = own->from[k], to = own->to[k];
    if (own->bin[k] == MIXED) {
      int64_t first = plan->start[from], size = plan->start[to] - first;
      if (size) NAME(add_products)(tally, factor, sorted + first, size, kind, 2);
      continue;
    }
    const int32_t *high = plan->before + 2 * used * to, *low = plan->before + 2 * used * from;
    int32_t *positive = plan->sums[own->bin[k]][sign] + lowest, *negative = plan->sums[own->bin[k]][1 - sign] + lowest;
    for (int j = 0; j < used; j += 16) {
      *(Sixteen *)(positive + j) += *(const Sixteen *)(high + j) - *(const Sixteen *)(low + j);
      *(Sixteen *)(negative + j) += *(const Sixteen *)(high + used + j) - *(const Sixteen *)(low + used + j);
    }
  }
}

static void flush_products(Products *plan, const Rule *r, int64_t *table) {
  for (int bin = 0; bin < 2 * r->per_octave; bin++) {
    for (int sign = 0; sign < 2; sign++) {
      for (int sum = plan->least; sum < plan->most; sum++) {
        int32_t count = plan->sums[bin][sign][sum];
        if (!count) continue;
        plan->sums[bin][sign][sum] = 0;
        int64_t step = (int64_t)(sum - BIAS - r->lowest) * r->per_octave + bin;
        step = step >= r->steps ? r->steps - 1 : step;
        table[step < 0 ? r->zero : sign ? r->zero - 1 - step : r->zero + 1 + step] += count;
      }
    }
  }
}

INLINE int is_safe(float factor, int lowest_octave, int top, int kind) {
  int exponent = (int)(__builtin_bit_cast(uint32_t, factor) >> 23 & 255) - BIAS;
  int least = kind == 2 ? -14 : -126, most = kind == 2 ? 15 : 127;
  int low = exponent + lowest_octave - BIAS, high = exponent + top - BIAS + 1;
  return exponent > -BIAS && low > least && high < most;
}

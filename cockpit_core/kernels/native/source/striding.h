// Walks through parameters, steps and gradients: lengths, differences, and how far a step runs along a gradient. All sums
// are in double precision, in which products of single numbers are exact.
typedef double NAME(W) __attribute__((ext_vector_type(LANES)));
#define W NAME(W)

INLINE W NAME(widen)(V x) { return __builtin_convertvector(x, W); }

INLINE double NAME(total)(W sum) {
  double total = 0;
  UNROLL for (int i = 0; i < LANES; i++) total += sum[i];
  return total;
}

INLINE V NAME(load_some)(const REAL *p, int64_t left) {  // zeros behind the last one
  V x = 0;
  for (int64_t i = 0; i < left; i++) x[i] = p[i];
  return x;
}

// jobs [count, 4]: the addresses of x, of y (0: none) and of where x - y is put (0: nowhere), and how many there are. What is
// found is put into sums [count, 2]: ||x||^2 and ||x - y||^2.
EXPORT void NAME(walk_apart)(const int64_t *jobs, int64_t count, double *sums) {
  for (int64_t k = 0; k < count; k++, jobs += 4, sums += 2) {
    const REAL *x = (const REAL *)(intptr_t)jobs[0], *y = (const REAL *)(intptr_t)jobs[1];
    REAL *to = (REAL *)(intptr_t)jobs[2];
    const int64_t size = jobs[3];
    W own = (W)0, apart = (W)0;
    int64_t j = 0;
    for (; j + LANES <= size; j += LANES) {
      V here = NAME(load)(x + j);
      W wide = NAME(widen)(here);
      own = FMA(wide, wide, own);
      if (!y) continue;
      V difference = here - NAME(load)(y + j);
      if (to) *(NAME(VU) *)(to + j) = difference;
      wide = NAME(widen)(difference);
      apart = FMA(wide, wide, apart);
    }
    if (j < size) {
      V here = NAME(load_some)(x + j, size - j), difference = (V)0;
      W wide = NAME(widen)(here);
      own = FMA(wide, wide, own);
      if (y) difference = here - NAME(load_some)(y + j, size - j);
      if (to) for (int64_t i = 0; i < size - j; i++) to[j + i] = difference[i];
      wide = NAME(widen)(difference);
      apart = FMA(wide, wide, apart);
    }
    sums[0] = NAME(total)(own), sums[1] = NAME(total)(apart);
  }
}

// jobs [count, 3]: the addresses of s and of g, and how many there are; factors [count]. What is found is put into sums
// [count, 2]: ||s - c g||^2 and (s - c g) . g, with c the factor.
EXPORT void NAME(walk_along)(const int64_t *jobs, const double *factors, int64_t count, double *sums) {
  for (int64_t k = 0; k < count; k++, jobs += 3, sums += 2) {
    const REAL *s = (const REAL *)(intptr_t)jobs[0], *g = (const REAL *)(intptr_t)jobs[1];
    const int64_t size = jobs[2];
    const W factor = (W)factors[k];
    W rest = (W)0, more = (W)0;
    int64_t j = 0;
    for (; j + LANES <= size; j += LANES) {
      W along = NAME(widen)(NAME(load)(g + j)), left = NAME(widen)(NAME(load)(s + j)) - factor * along;
      rest = FMA(left, left, rest), more = FMA(left, along, more);
    }
    if (j < size) {
      W along = NAME(widen)(NAME(load_some)(g + j, size - j));
      W left = NAME(widen)(NAME(load_some)(s + j, size - j)) - factor * along;
      rest = FMA(left, left, rest), more = FMA(left, along, more);
    }
    sums[0] = NAME(total)(rest), sums[1] = NAME(total)(more);
  }
}

// jobs [count, 3]: the address of some numbers, how many there are, and how far it is from one to the next. What is found is
// put into sums [count, 3]: their sum, that of their sizes, and that of squared distances from their mean.
EXPORT void NAME(describe_vectors)(const int64_t *jobs, int64_t count, double *sums) {
  for (int64_t k = 0; k < count; k++, jobs += 3, sums += 3) {
    const REAL *x = (const REAL *)(intptr_t)jobs[0];
    const int64_t size = jobs[1], step = jobs[2];
    double sum = 0, sizes = 0, apart = 0;
    for (int64_t j = 0; j < size; j++) {
      double value = x[j * step];
      sum += value, sizes += value < 0 ? -value : value;
    }
    double mean = size ? sum / (double)size : 0;
    for (int64_t j = 0; j < size; j++) {
      double away = x[j * step] - mean;
      apart += away * away;
    }
    sums[0] = sum, sums[1] = sizes, sums[2] = apart;
  }
}
#undef W

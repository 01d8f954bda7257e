// What a normalisation over channels contributes to the gradients of its weight and bias, sample by sample: sums over
// positions of b x_hat and of b, x_hat = (x - mean) inverse. Nothing of x's size is written.

#define RUN 1024  // numbers whose sums stay in the type itself

// Sum of x - shift, or of its square, over `size` numbers.
INLINE double NAME(sum_of)(const REAL *x, int64_t size, REAL shift, int squared) {
  double total = 0;
  for (int64_t start = 0; start < size; start += RUN) {
    int64_t end = size - start < RUN ? size : start + RUN, j = start;
    V sum0 = 0, sum1 = 0, s = NAME(splat)(shift);
    for (; j + 2 * LANES <= end; j += 2 * LANES) {
      V d0 = NAME(load)(x + j) - s, d1 = NAME(load)(x + j + LANES) - s;
      if (squared) sum0 = FMA(d0, d0, sum0), sum1 = FMA(d1, d1, sum1);
      else sum0 += d0, sum1 += d1;
    }
    for (; j < end; j++) {
      REAL d = x[j] - shift;
      total += squared ? (double)d * d : (double)d;
    }
    total += NAME(add_lanes)(sum0 + sum1);
  }
  return total;
}

// Mean and variance of x [outer, groups, size] for each [outer, group], or over `outer` too where `joined`.
EXPORT void NAME(find_moments)(const REAL *x, int64_t outer, int64_t groups, int64_t size, int joined, double *mean,
                               double *variance) {
  int64_t count = joined ? 1 : outer;
  for (int64_t k = 0; k < count * groups; k++) {
    int64_t first = joined ? 0 : k / groups, last = joined ? outer : first + 1, g = k % groups;
    double total = (double)(last - first) * (double)size, sum = 0, squares = 0, rest = 0;
    for (int64_t n = first; n < last; n++) sum += NAME(sum_of)(x + (n * groups + g) * size, size, 0, 0);
    mean[k] = sum / total;
    REAL shift = (REAL)mean[k];
    for (int64_t n = first; n < last; n++) squares += NAME(sum_of)(x + (n * groups + g) * size, size, shift, 1);
    rest = mean[k] - (double)shift;
    variance[k] = squares / total - rest * rest;
  }
}

// x, b [outer, channels, size]; mean and inverse [outer or 1, groups], groups of equally many channels.
EXPORT void NAME(sum_normalised)(const REAL *x, const REAL *b, int64_t outer, int64_t channels, int64_t size,
                                 int64_t groups, int joined, const double *mean, const double *inverse, REAL *products,
                                 REAL *sums) {
  for (int64_t k = 0; k < outer * channels; k++) {
    int64_t at = (joined ? 0 : k / channels * groups) + k % channels / (channels / groups);
    REAL shift = (REAL)mean[at];
    double product = 0, plain = 0, rest = mean[at] - (double)shift;
    const REAL *own = x + k * size, *gradient = b + k * size;
    for (int64_t start = 0; start < size; start += RUN) {
      int64_t end = size - start < RUN ? size : start + RUN, j = start;
      V p0 = 0, p1 = 0, s0 = 0, s1 = 0, s = NAME(splat)(shift);
      for (; j + 2 * LANES <= end; j += 2 * LANES) {
        V g0 = NAME(load)(gradient + j), g1 = NAME(load)(gradient + j + LANES);
        s0 += g0, s1 += g1;
        p0 = FMA(g0, NAME(load)(own + j) - s, p0), p1 = FMA(g1, NAME(load)(own + j + LANES) - s, p1);
      }
      for (; j < end; j++) plain += gradient[j], product += (double)gradient[j] * (double)(own[j] - shift);
      product += NAME(add_lanes)(p0 + p1), plain += NAME(add_lanes)(s0 + s1);
    }
    rest *= plain;
    if (rest - rest == 0) product -= rest;  // what is infinite stays so
    products[k] = (REAL)(product * inverse[at]), sums[k] = (REAL)plain;
  }
}
#undef RUN

// Which share of an adaptive optimizer's denominators is eps? Sums of eps / (sqrt(v) * factor + eps) over pieces of second
// moments: jobs [count, 2] are addresses and sizes, each with a factor and an eps; what is found is added to sums [count].
EXPORT void NAME(sum_shares)(const int64_t *jobs, const double *given, int64_t count, double *sums) {
  for (int64_t k = 0; k < count; k++, jobs += 2, given += 2) {
    const REAL *v = (const REAL *)(intptr_t)jobs[0], factor = (REAL)given[0], eps = (REAL)given[1];
    const int64_t size = jobs[1];
    for (int64_t start = 0; start < size; start += PIECE) {
      int64_t end = size - start < PIECE ? size : start + PIECE, j = start;
      V sum = (V)0, rest = (V)0;
      for (; j + LANES <= end; j += LANES)
        sum += NAME(splat)(eps) / (__builtin_elementwise_sqrt(NAME(load)(v + j)) * factor + eps);
      int64_t left = end - j;
      if (left) {
        for (int64_t i = 0; i < left; i++) rest[i] = v[j + i];
        V last = NAME(splat)(eps) / (__builtin_elementwise_sqrt(rest) * factor + eps);
        sum += (V)((I)last & NAME(below)(left));
      }
      double total = 0;
      UNROLL for (int i = 0; i < LANES; i++) total += sum[i];
      sums[k] += total;
    }
  }
}

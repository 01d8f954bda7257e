// Work on several layers, shared by the threads that come: each calls one of these with the same `Work`, takes the next item
// until none is left, and writes what nobody else writes. So results do not depend on how many threads there are.

// Behind a multiple of LANES numbers.
INLINE int64_t NAME(round_up)(int64_t size) { return (size + LANES - 1) / LANES * LANES; }

// As reduce_dense with one direction. jobs [*, 20]: addresses of the image [samples, groups, in_channels, image_rows, width],
// of left [samples, groups, channels, positions] and of the direction [groups, channels, in_channels, taps]; groups,
// in_channels, channels; image_rows, width and where these rows begin in the moved image; image_size of that (one group);
// positions, groups_of_rows, rows, row_step, length, places and starts as in convolution.h; taps of the kernel; the place of
// its first sample in norms [*] and dots [*, 2], which hold zeros; and how many samples an item has at most. Room: the moved
// images of an item, and the moved direction, LANES numbers behind each.
EXPORT void NAME(walk_convolutions)(Work *work) {
  REAL *room = (REAL *)work->room + work->room_size * __atomic_fetch_add(&work->arrived, 1, __ATOMIC_RELAXED);
  static const int32_t one_row[1] = {0};
  int64_t known = -1;
  for (const int64_t *item; (item = take_item(work));) {
    const int64_t *job = work->jobs + 20 * item[0], first = item[1], last = item[2];
    const int64_t groups = job[3], in_channels = job[4], channels = job[5], image_size = job[9], positions = job[10];
    const int64_t taps = job[17], filled = job[19] * groups * image_size + LANES;
    REAL *along = room + NAME(round_up)(filled);
    if (item[0] != known) {  // what surrounds the images stays zero as long as they have the same places
      for (int64_t j = 0; j < NAME(round_up)(filled); j += LANES) *(NAME(VU) *)(room + j) = (V)0;
      const int64_t kernel[4] = {in_channels, 1, taps, in_channels * taps};
      NAME(move_channels)((const REAL *)(intptr_t)job[2], along, groups * channels, kernel, one_row);
      known = item[0];
    }
    const int64_t image[4] = {in_channels, job[6], job[7], image_size};
    const REAL *from = (const REAL *)(intptr_t)job[0] + first * groups * in_channels * job[6] * job[7];
    NAME(move_channels)(from, room, (last - first) * groups, image, (const int32_t *)(intptr_t)job[8]);
    const int64_t sizes[8] = {groups, channels, image_size, positions, job[11], job[12], job[13], job[14]};
    const int64_t steps[4] = {groups * channels * positions, positions, 1, groups * image_size};
    NAME(reduce_dense)(room, (const REAL *)(intptr_t)job[1] + first * steps[0], last - first, sizes, steps,
                       (const int32_t *)(intptr_t)job[15], (const int32_t *)(intptr_t)job[16], work->scales[item[0]], along,
                       0, 1, 0, 0, 0, work->norms + job[18] + first, work->dots + 2 * (job[18] + first), 0, 0);
  }
}

// find_moments and sum_normalised, one sample after the other while it is in the cache. jobs [*, 7]: addresses of x and b
// [samples, channels, size], of products and sums [samples, channels], then channels, size and groups; scales are eps.
EXPORT void NAME(walk_normalised)(Work *work) {
  for (const int64_t *item; (item = take_item(work));) {
    const int64_t *job = work->jobs + 7 * item[0];
    const REAL *x = (const REAL *)(intptr_t)job[0], *b = (const REAL *)(intptr_t)job[1];
    REAL *products = (REAL *)(intptr_t)job[2], *sums = (REAL *)(intptr_t)job[3];
    const int64_t channels = job[4], size = job[5], each = job[4] / job[6];
    for (int64_t k = item[1] * channels; k < item[2] * channels; k += each) {
      double mean, variance;
      NAME(find_moments)(x + k * size, 1, 1, each * size, 0, &mean, &variance);
      double inverse = 1 / __builtin_sqrt(variance + work->scales[item[0]]);
      NAME(sum_normalised)(x + k * size, b + k * size, 1, each, size, 1, 0, &mean, &inverse, products + k, sums + k);
    }
  }
}

// The same where each position is normalised over its own numbers (LayerNorm). jobs [*, 10]: addresses of x and b [samples,
// positions, size], whose samples and positions lie apart as the next four say (x first); addresses of products and sums
// [samples, size]; positions and size. Room: mean and 1 / deviation of each position.
#define SHORT 32  // positions whose sums stay together
EXPORT void NAME(walk_positions)(Work *work) {
  REAL *room = (REAL *)work->room + work->room_size * __atomic_fetch_add(&work->arrived, 1, __ATOMIC_RELAXED);
  for (const int64_t *item; (item = take_item(work));) {
    const int64_t *job = work->jobs + 10 * item[0], positions = job[8], size = job[9];
    REAL *means = room, *inverses = room + positions;
    for (int64_t n = item[1]; n < item[2]; n++) {
      const REAL *x = (const REAL *)(intptr_t)job[0] + n * job[2], *b = (const REAL *)(intptr_t)job[1] + n * job[4];
      REAL *products = (REAL *)(intptr_t)job[6] + n * size, *sums = (REAL *)(intptr_t)job[7] + n * size;
      for (int64_t s = 0; s < positions; s++) {
        double mean, variance;
        NAME(find_moments)(x + s * job[3], 1, 1, size, 0, &mean, &variance);
        means[s] = (REAL)mean, inverses[s] = (REAL)(1 / __builtin_sqrt(variance + work->scales[item[0]]));
      }
      int64_t j = 0;
      for (; j + LANES <= size; j += LANES) {
        V product = 0, sum = 0;
        for (int64_t start = 0; start < positions; start += SHORT) {
          int64_t end = positions - start < SHORT ? positions : start + SHORT;
          V p = 0, q = 0;
          for (int64_t s = start; s < end; s++) {
            V g = NAME(load)(b + s * job[5] + j);
            p = FMA(g, (NAME(load)(x + s * job[3] + j) - means[s]) * inverses[s], p), q += g;
          }
          product += p, sum += q;
        }
        *(NAME(VU) *)(products + j) = product, *(NAME(VU) *)(sums + j) = sum;
      }
      for (; j < size; j++) {
        double product = 0, sum = 0;
        for (int64_t s = 0; s < positions; s++) {
          double g = b[s * job[5] + j];
          product += g * (double)((x[s * job[3] + j] - means[s]) * inverses[s]), sum += g;
        }
        products[j] = (REAL)product, sums[j] = (REAL)sum;
      }
    }
  }
}
#undef SHORT

// reduce_grams of all jobs, some samples at a time: items are [number of jobs, first, last].
EXPORT void NAME(walk_grams)(Work *work) {
  for (const int64_t *item; (item = take_item(work));)
    NAME(reduce_grams)(work->jobs, item[0], item[1], item[2], work->scales, work->norms);
}

// reduce_outer and count_outer, some samples at a time. jobs [*, 10]: addresses of b [samples, out] and a [samples, in], out and
// in, addresses of two directions (0: none), of the rule of the bins (0: nothing is counted), kind, categories, and what
// describe_products has written (0: nothing). Norms [samples] and dots [samples, 2] are written. Room, in bytes: TABLES tables
// of counts, which hold zeros, and behind them what count_outer calls memory and later, each at a multiple of 64.
EXPORT void NAME(walk_outer)(Work *work) {
  char *room = (char *)work->room + work->room_size * __atomic_fetch_add(&work->arrived, 1, __ATOMIC_RELAXED);
  for (const int64_t *item; (item = take_item(work));) {
    const int64_t *job = work->jobs + 10 * item[0], first = item[1], samples = item[2] - item[1], out = job[2], in = job[3];
    const REAL *b = (const REAL *)(intptr_t)job[0] + first * out, *a = (const REAL *)(intptr_t)job[1] + first * in;
    NAME(reduce_outer)(b, a, samples, out, in, (const REAL *)(intptr_t)job[4], (const REAL *)(intptr_t)job[5],
                       work->norms + first, work->dots + 2 * first);
    if (!job[6]) continue;
    char *memory = room + (TABLES * job[8] * 8 + 63) / 64 * 64, *later = memory + (3 * (in + LANES) * sizeof(REAL) + 63) / 64 * 64;
    NAME(count_outer)(b, a, samples, out, in, (int)job[7], (const double *)(intptr_t)job[6], (int64_t *)room, job[8],
                      (REAL *)memory, (int32_t *)later, (const void *)(intptr_t)job[9]);
  }
}

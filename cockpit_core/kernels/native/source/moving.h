// Channels from the first place to the last, with room around for what surrounds an image: one copy instead of three.

#if LANES == 16
#define FIRST_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define FIRST_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#elif LANES == 4
#define FIRST_HALVES 0, 4, 1, 5
#define SECOND_HALVES 2, 6, 3, 7
#else
#define FIRST_HALVES 0, 2
#define SECOND_HALVES 1, 3
#endif

// LANES rows of LANES numbers, `apart` in memory, become columns: row i is interleaved with row i + LANES / 2, again and
// again. The first `wide` columns are kept.
INLINE void NAME(turn)(const REAL *from, int64_t apart, REAL *to, int64_t between, int64_t wide) {
  V rows[LANES], next[LANES];
  UNROLL for (int i = 0; i < LANES; i++) rows[i] = NAME(load)(from + i * apart);
  UNROLL for (int done = 1; done < LANES; done *= 2) {
    UNROLL for (int i = 0; i < LANES / 2; i++) {
      next[2 * i] = __builtin_shufflevector(rows[i], rows[i + LANES / 2], FIRST_HALVES);
      next[2 * i + 1] = __builtin_shufflevector(rows[i], rows[i + LANES / 2], SECOND_HALVES);
    }
    UNROLL for (int i = 0; i < LANES; i++) rows[i] = next[i];
  }
  UNROLL for (int i = 0; i < LANES; i++)
    if (i < wide) *(NAME(VU) *)(to + i * between) = rows[i];
}

// from [images, channels, rows, width] to [images, image_size]: row r begins at position starts[r], and a position holds all
// channels. What lies between rows is left as it is. sizes: channels, rows, width, image_size.
EXPORT void NAME(move_channels)(const REAL *from, REAL *to, int64_t images, const int64_t *sizes, const int32_t *starts) {
  int64_t channels = sizes[0], rows = sizes[1], width = sizes[2], space = rows * width;
  for (int64_t k = 0; k < images; k++, from += channels * space, to += sizes[3]) {
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t c = 0; c < channels; c += LANES) {
        int64_t high = channels - c < LANES ? channels - c : LANES;
        for (int64_t w = 0; w < width; w += LANES) {
          int64_t wide = width - w < LANES ? width - w : LANES;
          const REAL *source = from + c * space + r * width + w;
          REAL *target = to + (starts[r] + w) * channels + c;
          if (wide == LANES && high == LANES) {
            NAME(turn)(source, space, target, channels, LANES);
            continue;
          }
          // Short rows (kernels of 3 x 3): the last one is read beyond its end, where there are more of these numbers.
          int64_t left = k + 1 < images ? INT64_MAX : (channels - c) * space - r * width - w;
          if (high == LANES && 2 * wide >= LANES && (LANES - 1) * space + LANES <= left) {
            NAME(turn)(source, space, target, channels, wide);
            continue;
          }
          for (int64_t j = 0; j < wide; j++)
            for (int64_t i = 0; i < high; i++) target[j * channels + i] = source[i * space + j];
        }
      }
    }
  }
}
#undef FIRST_HALVES
#undef SECOND_HALVES

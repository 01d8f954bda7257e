// Channels from the first place to the last, with room around for what surrounds an image: one copy instead of three.

#define SIDE 16  // of the squares that are turned beside: channels may lie a power of two apart, where caches hold few

// from [images, channels, rows, width] to [images, image_size]: row r begins at position starts[r], and a position holds all
// channels. What lies between rows is left as it is. sizes: channels, rows, width, image_size.
EXPORT void NAME(move_channels)(const REAL *from, REAL *to, int64_t images, const int64_t *sizes, const int32_t *starts) {
  int64_t channels = sizes[0], rows = sizes[1], width = sizes[2], space = rows * width;
  REAL turned[SIDE][SIDE];
  for (int64_t k = 0; k < images; k++, from += channels * space, to += sizes[3]) {
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t c = 0; c < channels; c += SIDE) {
        int64_t high = channels - c < SIDE ? channels - c : SIDE;
        for (int64_t w = 0; w < width; w += SIDE) {
          int64_t wide = width - w < SIDE ? width - w : SIDE;
          const REAL *source = from + c * space + r * width + w;
          REAL *target = to + (starts[r] + w) * channels + c;
          if (wide < SIDE || high < SIDE) {
            for (int64_t j = 0; j < wide; j++)
              for (int64_t i = 0; i < high; i++) target[j * channels + i] = source[i * space + j];
            continue;
          }
          for (int i = 0; i < SIDE; i++) UNROLL for (int j = 0; j < SIDE; j++) turned[j][i] = source[i * space + j];
          for (int j = 0; j < SIDE; j++) UNROLL for (int i = 0; i < SIDE; i++) target[j * channels + i] = turned[j][i];
        }
      }
    }
  }
}
#undef SIDE

// The parts of an LSTM that are no product of matrices. Gates [rows, steps, 4, size] are i, f, g, o as they act (logistic,
// g: tanh); cells [rows, steps + 1, size] begin with the state before the first step.

// cells[:, t + 1] = f cells[:, t] + i g
EXPORT void NAME(fill_cells)(const REAL *gates, REAL *cells, int64_t rows, int64_t steps, int64_t size) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t t = 0; t < steps; t++) {
      const REAL *i = gates + (r * steps + t) * 4 * size, *f = i + size, *g = f + size;
      REAL *c = cells + (r * (steps + 1) + t) * size;
      int64_t j = 0;
      for (; j + LANES <= size; j += LANES)
        *(NAME(VU) *)(c + size + j) = FMA(NAME(load)(f + j), NAME(load)(c + j), NAME(load)(i + j) * NAME(load)(g + j));
      for (; j < size; j++) c[size + j] = f[j] * c[j] + i[j] * g[j];
    }
}

// What a gate hands on, where h and c are the gradients of the hidden state and of the cell behind it.
#define HAND_ON(T, LOAD, STORE)                                                          \
  T x = LOAD(i + j), y = LOAD(f + j), z = LOAD(g + j), u = LOAD(o + j), w = LOAD(bent + j); \
  T in = LOAD(h + j), cell = LOAD(own + j) + in * u * (1 - w * w);                       \
  STORE(to + j, cell * z * x * (1 - x));                                                 \
  STORE(to + size + j, cell * LOAD(c + j) * y * (1 - y));                                \
  STORE(to + 2 * size + j, cell * x * (1 - z * z));                                      \
  STORE(to + 3 * size + j, in * w * u * (1 - u));                                        \
  STORE(own + j, cell * y)
#define READ_ONE(p) (*(p))
#define WRITE_ONE(p, v) (*(p) = (v))
#define WRITE(p, v) (*(NAME(VU) *)(p) = (v))

// One step back, t: from hidden [rows, size], rows `apart`, and cell [rows, size], which becomes that of the step before, to
// the gradient at the gates, slopes [rows, steps, 4, size]. `bent` [rows, steps, size] is tanh of the cells behind each step.
EXPORT void NAME(step_back)(const REAL *gates, const REAL *cells, const REAL *bent_all, const REAL *hidden, int64_t apart,
                            REAL *cell_all, REAL *slopes, int64_t rows, int64_t steps, int64_t size, int64_t t) {
  for (int64_t r = 0; r < rows; r++) {
    const REAL *i = gates + (r * steps + t) * 4 * size, *f = i + size, *g = f + size, *o = g + size;
    const REAL *c = cells + (r * (steps + 1) + t) * size, *bent = bent_all + (r * steps + t) * size;
    const REAL *h = hidden + r * apart;
    REAL *own = cell_all + r * size, *to = slopes + (r * steps + t) * 4 * size;
    int64_t j = 0;
    for (; j + LANES <= size; j += LANES) {
      HAND_ON(V, NAME(load), WRITE);
    }
    for (; j < size; j++) {
      HAND_ON(REAL, READ_ONE, WRITE_ONE);
    }
  }
}
#undef HAND_ON
#undef READ_ONE
#undef WRITE_ONE
#undef WRITE

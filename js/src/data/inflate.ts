// Deflate (RFC 1951) inside zlib (RFC 1950), the one codec of the schema. A library for all of its uses takes a fiftieth of
// a bundle; reading is this much. Bytes that are cut off or are no stream throw; the checksum is not looked at.

type Codes = Uint16Array; // symbol << 4 | bits of its code, at every place whose last bits are that code, read backwards

function makeCodes(sizes: Uint8Array): Codes {
  const counts = new Uint16Array(17);
  for (const size of sizes) counts[size]++;
  let most = 15;
  while (most > 1 && !counts[most]) most--;
  const codes = new Uint16Array(1 << most);
  const next = new Uint16Array(17); // code of each size
  for (let size = 1; size < most; size++) next[size + 1] = (next[size] + counts[size]) << 1;
  for (let symbol = 0; symbol < sizes.length; symbol++) {
    const size = sizes[symbol];
    if (!size) continue;
    let place = 0;
    for (let code = next[size]++, i = size; i--; code >>= 1) place = (place << 1) | (code & 1);
    for (; place < codes.length; place += 1 << size) codes[place] = (symbol << 4) | size;
  }
  return codes;
}

const FIXED = [
  makeCodes(Uint8Array.from({ length: 288 }, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8))),
  makeCodes(new Uint8Array(32).fill(5)),
];

/** How many more bits say which length or distance it is, and the first one of each symbol. */
function ranges(count: number, shift: number, first: number): [Uint8Array, Uint16Array] {
  const bits = Uint8Array.from({ length: count }, (_, i) => Math.max(0, (i >> shift) - 1));
  let next = first;
  return [bits, Uint16Array.from(bits, (more) => (next += 1 << more) - (1 << more))];
}
const [LENGTH_BITS, LENGTHS] = ranges(29, 2, 3);
[LENGTH_BITS[28], LENGTHS[28]] = [0, 258];
const [DISTANCE_BITS, DISTANCES] = ranges(30, 1, 1);

/** The two codes of a block, themselves in a code: its sizes come in this order. */
const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
function readCodes(take: (bits: number) => number, next: (codes: Codes) => number): Codes[] {
  const [literals, distances] = [take(5) + 257, take(5) + 1];
  const own = new Uint8Array(19);
  for (let i = 0, count = take(4) + 4; i < count; i++) own[ORDER[i]] = take(3);
  const codes = makeCodes(own);
  const sizes = new Uint8Array(literals + distances);
  for (let i = 0; i < sizes.length; ) {
    const symbol = next(codes);
    const again = symbol < 16 ? 1 : symbol === 16 ? 3 + take(2) : symbol === 17 ? 3 + take(3) : 11 + take(7);
    sizes.fill(symbol < 16 ? symbol : symbol > 16 ? 0 : sizes[i - 1], i, (i += again));
  }
  return [makeCodes(sizes.subarray(0, literals)), makeCodes(sizes.subarray(literals))];
}

const fail = (): never => {
  throw new Error("compressed data is damaged");
};

/** One block from a bit on into `out` from `at` on; where both ended. Nearly all of the time is spent here. */
function readBlock(data: Uint8Array, start: number, [literals, distances]: Codes[], out: Uint8Array, from: number) {
  const end = 8 * data.length - 32;
  let [bit, at] = [start, from];
  for (;;) {
    let byte = bit >> 3;
    const entry =
      literals[((data[byte] | (data[byte + 1] << 8) | (data[byte + 2] << 16)) >>> (bit & 7)) & (literals.length - 1)];
    const symbol = entry >> 4;
    bit += entry & 15;
    if (!entry || bit > end) fail();
    if (symbol < 256) {
      if (at === out.length) fail();
      out[at++] = symbol;
      continue;
    }
    if (symbol === 256) return [bit, at];
    byte = bit >> 3;
    let bits = ((data[byte] | (data[byte + 1] << 8)) >>> (bit & 7)) & ((1 << LENGTH_BITS[symbol - 257]) - 1);
    const stop = at + LENGTHS[symbol - 257] + bits;
    bit += LENGTH_BITS[symbol - 257];
    byte = bit >> 3;
    bits = (data[byte] | (data[byte + 1] << 8) | (data[byte + 2] << 16)) >>> (bit & 7);
    const far = distances[bits & (distances.length - 1)];
    bit += far & 15;
    byte = bit >> 3;
    bits = (data[byte] | (data[byte + 1] << 8) | (data[byte + 2] << 16)) >>> (bit & 7);
    const back = DISTANCES[far >> 4] + (bits & ((1 << DISTANCE_BITS[far >> 4]) - 1));
    bit += DISTANCE_BITS[far >> 4];
    if (!far || !(back <= at) || !(stop <= out.length)) fail();
    for (; at < stop; at++) out[at] = out[at - back];
  }
}

/** At most `size` bytes, of which nothing is made before. */
export function inflate(data: Uint8Array, size: number): Uint8Array {
  if ((data[0] & 15) !== 8 || ((data[0] << 8) | data[1]) % 31 || data[1] & 32) fail();
  const out = new Uint8Array(size);
  let [bit, at, last] = [16, 0, 0];
  const peek = () => (data[bit >> 3] | (data[(bit >> 3) + 1] << 8) | (data[(bit >> 3) + 2] << 16)) >>> (bit & 7);
  const take = (bits: number) => {
    const value = peek() & ((1 << bits) - 1);
    bit += bits;
    return bit > 8 * data.length ? fail() : value;
  };
  const next = (codes: Codes) => {
    const entry = codes[peek() & (codes.length - 1)];
    take(entry & 15);
    return entry ? entry >> 4 : fail();
  };
  while (!last) {
    last = take(1);
    const kind = take(2);
    if (kind) {
      const codes = kind === 1 ? FIXED : kind === 2 ? readCodes(take, next) : fail();
      [bit, at] = readBlock(data, bit, codes, out, at);
    } else {
      const from = Math.ceil(bit / 8) + 4;
      const stop = from + (data[from - 4] | (data[from - 3] << 8));
      if (!(stop + 4 <= data.length) || at + stop - from > size) fail();
      out.set(data.subarray(from, stop), at);
      at += stop - from;
      bit = 8 * stop;
    }
  }
  return out.subarray(0, at);
}

// The only module that knows the protobuf: bytes in, plain columns out. Field names are those of the schema.
import type * as pb from "../gen/cockpit_pb.ts";
import { Codec, DType } from "../gen/cockpit_pb.ts";
import { inflate } from "./inflate.ts";
import { decode } from "./protobuf.ts";
import type { Batch, Column, Header, HistogramData } from "./records.ts";

export type * from "./records.ts";

// The library names fields as JavaScript does; here they are called as in the schema.
type SnakeCase<Name extends string> = Name extends `${infer First}${infer Rest}`
  ? `${Lowercase<First>}${Rest extends Uncapitalize<Rest> ? "" : "_"}${SnakeCase<Rest>}`
  : Name;
type Raw<Message> = Message extends Uint8Array
  ? Message
  : Message extends (infer Item)[]
    ? Raw<Item>[]
    : Message extends { $typeName: string }
      ? { [Name in keyof Message & string as Name extends `$${string}` ? never : SnakeCase<Name>]: Raw<Message[Name]> }
      : Message;

type Numbers = Float64Array | Float32Array | Uint32Array | Int32Array | Uint8Array;

const itemSize: Partial<Record<DType, number>> = {
  [DType.DTYPE_FLOAT64]: 8,
  [DType.DTYPE_UINT64]: 8,
  [DType.DTYPE_FLOAT32]: 4,
  [DType.DTYPE_UINT32]: 4,
  [DType.DTYPE_INT32]: 4,
  [DType.DTYPE_UINT8]: 1,
};
const MOST_DIMENSIONS = 32;
const MOST_RATIO = 1032; // no stream of deflate grows more than this
const MOST_INFLATED = 512 * 1024 * 1024; // bytes of one message, as float64; Python sends half of it at most

/** What may still be inflated of one message: a small one could stand for gigabytes. */
class Room {
  private left = MOST_INFLATED;

  take(size: number): void {
    this.left -= size;
    if (!(this.left >= 0)) throw new Error(`a message that inflates to more than ${MOST_INFLATED} bytes`);
  }
}

/** How many bytes an array takes, as declared; nothing is made before that is known to be possible. */
function measure({ data, dtype, shape, codec }: Raw<pb.Array>): number {
  const item = itemSize[dtype];
  if (item === undefined) throw new Error(`array of unknown type ${dtype}`);
  if (shape.length > MOST_DIMENSIONS) throw new Error(`array of ${shape.length} dimensions`);
  if (codec !== Codec.RAW && codec !== Codec.ZLIB) throw new Error(`array of unknown codec ${codec}`);
  const size = shape.reduce((product, length) => product * length, item);
  const possible = codec === Codec.ZLIB ? size <= MOST_RATIO * data.length : size === data.length;
  if (!possible) throw new Error(`${data.length} bytes cannot be an array of ${size}`);
  return size;
}

function unpack({ data, dtype }: Raw<pb.Array>, size: number, room: Room): Uint8Array {
  room.take((8 * size) / (itemSize[dtype] ?? 1));
  const raw = inflate(data, size);
  if (raw.length !== size) throw new Error(`${raw.length} bytes where an array needs ${size}`);
  return raw;
}

// Bytes inside a message start at any offset, typed arrays only at multiples of their element size: copy first.
function decodeArray(array: Raw<pb.Array> | undefined, room: Room): Numbers {
  if (!array) return new Float64Array(0);
  const size = measure(array);
  const raw = array.codec === Codec.ZLIB ? unpack(array, size, room) : array.data;
  const buffer = raw.slice().buffer as ArrayBuffer;
  switch (array.dtype) {
    case DType.DTYPE_FLOAT64:
      return new Float64Array(buffer);
    case DType.DTYPE_FLOAT32:
      return new Float32Array(buffer);
    case DType.DTYPE_UINT32:
      return new Uint32Array(buffer);
    case DType.DTYPE_INT32:
      return new Int32Array(buffer);
    case DType.DTYPE_UINT64:
      return Float64Array.from(new BigUint64Array(buffer), Number);
    default:
      return new Uint8Array(buffer);
  }
}

const floats = (array: Raw<pb.Array> | undefined, room: Room) => {
  const numbers = decodeArray(array, room);
  return numbers instanceof Float64Array ? numbers : Float64Array.from(numbers);
};
const integers = (array: Raw<pb.Array> | undefined, room: Room) => {
  const numbers = decodeArray(array, room);
  return numbers instanceof Uint32Array ? numbers : Uint32Array.from(numbers);
};
const isIncreasing = (numbers: Uint32Array) => numbers.every((value, i) => !i || value > numbers[i - 1]);

function decodeHeader(header: Raw<pb.Header>): Header {
  const groupsOf = ({ groups }: Raw<pb.Optimizer>) => groups.map(({ hyperparameters }) => hyperparameters);
  return { ...header, optimizers: header.optimizers.map((own) => ({ name: own.name, groups: groupsOf(own) })) };
}

function convertHistogram(h: Raw<pb.Histogram>, room: Room): HistogramData {
  const shape = [...(h.counts?.shape ?? [])];
  const counts = floats(h.counts, room);
  const edges = floats(h.edges, room);
  const parameter_edges = h.parameter_edges ? floats(h.parameter_edges, room) : null;
  if (edges.length && edges.length !== shape[0] + 1) throw new Error("a histogram and its edges do not fit");
  if (parameter_edges && (shape.length !== 2 || parameter_edges.length !== shape[1] + 1))
    throw new Error("a histogram and its parameter edges do not fit");
  return { ...h, shape, counts, edges, parameter_edges };
}

export function decodeHistogram(bytes: Uint8Array): HistogramData {
  return convertHistogram(decode("Histogram", bytes) as unknown as Raw<pb.Histogram>, new Room());
}

/** Rows of a column or of notes are places among the rows of the batch. */
function placeRow(seq: Uint32Array, row: number): number {
  if (row >= seq.length) throw new Error(`row ${row} of ${seq.length}`);
  return seq[row];
}

function decodeColumn(column: Raw<pb.Column>, seq: Uint32Array, room: Room): Column {
  const values = floats(column.values, room);
  const rows = column.rows ? integers(column.rows, room) : null;
  if (rows && !isIncreasing(rows)) throw new Error("rows of a column are not in order");
  const own = rows ? rows.map((row) => placeRow(seq, row)) : seq;
  if (own.length !== values.length) throw new Error("a column and its rows differ in length");
  return { name: column.name, layer: column.layer, seq: own, values, decimated: column.decimated };
}

export function decodeBatch(bytes: Uint8Array): Batch {
  const b = decode("Batch", bytes) as unknown as Raw<pb.Batch>;
  const room = new Room();
  const seq = integers(b.seq, room);
  const step = integers(b.step, room);
  const time = floats(b.time, room);
  const wall_time = floats(b.wall_time, room);
  const epoch = b.epoch ? floats(b.epoch, room) : null;
  const triggered = b.triggered ? Uint8Array.from(decodeArray(b.triggered, room)) : null;
  if ([step, time, wall_time, epoch, triggered].some((column) => column && column.length !== seq.length))
    throw new Error("rows of a batch differ in length");
  if (!isIncreasing(seq)) throw new Error("rows of a batch are not in order");
  const missing = b.notes.flatMap((note) =>
    note.missing.map(({ name, reason }) => ({ seq: placeRow(seq, note.row), name, reason })),
  );
  return {
    ...b,
    header: b.header ? decodeHeader(b.header) : null,
    seq,
    step,
    time,
    wall_time,
    epoch,
    triggered,
    columns: b.columns.map((column) => decodeColumn(column, seq, room)),
    alphas: b.alphas.map((own) => ({ ...own, alpha: own.has_alpha ? own.alpha : null })),
    missing,
    top_samples: b.notes
      .filter((note) => note.top_samples.length)
      .map((note) => ({ seq: placeRow(seq, note.row), samples: note.top_samples })),
    heavy: b.heavy.map(({ quantity, steps }) => ({ quantity, steps: integers(steps, room) })),
    histograms: b.histograms.map((histogram) => convertHistogram(histogram, room)),
    status: b.status ?? null,
  };
}

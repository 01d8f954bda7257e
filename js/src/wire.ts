// The only module that knows the protobuf: bytes in, plain columns out. Field names are those of the schema.
import { unzlibSync } from "fflate";
import type * as pb from "./gen/cockpit_pb.ts";
import { Codec, DType } from "./gen/cockpit_pb.ts";
import { decode } from "./protobuf.ts";
import type { AlphaFit, Batch, Column, Finding, Header, HistogramData } from "./records.ts";

export type * from "./records.ts";

type Numbers = Float64Array | Float32Array | Uint32Array | Int32Array | Uint8Array;

const itemSize: Partial<Record<DType, number>> = {
  [DType.DTYPE_FLOAT64]: 8,
  [DType.DTYPE_UINT64]: 8,
  [DType.DTYPE_FLOAT32]: 4,
  [DType.DTYPE_UINT32]: 4,
  [DType.DTYPE_INT32]: 4,
};

// Without a hint of the size every small histogram would be unpacked into 130 kB. What claims to be larger than a
// thousandfold is not believed.
function inflate({ data, dtype, shape }: pb.Array): Uint8Array {
  const size = shape.reduce((product, length) => product * length, itemSize[dtype] ?? 1);
  return size <= 1000 * data.length ? unzlibSync(data, { out: new Uint8Array(size) }) : unzlibSync(data);
}

// Bytes inside a message start at any offset, typed arrays only at multiples of their element size: copy first.
function decodeArray(array: pb.Array | undefined): Numbers {
  if (!array) return new Float64Array(0);
  const raw = array.codec === Codec.ZLIB ? inflate(array) : array.data.slice();
  const whole = raw.byteLength === raw.buffer.byteLength;
  const buffer = (
    whole ? raw.buffer : raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength)
  ) as ArrayBuffer;
  switch (array.dtype) {
    case DType.DTYPE_FLOAT64:
      return new Float64Array(buffer);
    case DType.DTYPE_FLOAT32:
      return new Float32Array(buffer);
    case DType.DTYPE_UINT32:
      return new Uint32Array(buffer);
    case DType.DTYPE_INT32:
      return new Int32Array(buffer);
    case DType.DTYPE_UINT8:
      return new Uint8Array(buffer);
    case DType.DTYPE_UINT64:
      return Float64Array.from(new BigUint64Array(buffer), Number);
    default:
      throw new Error(`array of unknown type ${array.dtype}`);
  }
}

const floats = (array: pb.Array | undefined) => {
  const numbers = decodeArray(array);
  return numbers instanceof Float64Array ? numbers : Float64Array.from(numbers);
};
const integers = (array: pb.Array | undefined) => {
  const numbers = decodeArray(array);
  return numbers instanceof Uint32Array ? numbers : Uint32Array.from(numbers);
};

function decodeHeader(h: pb.Header): Header {
  return {
    revision: h.revision,
    name: h.name,
    created: h.created,
    model: h.model,
    num_parameters: h.numParameters,
    layers: h.layers.map(({ name, shape, size, module, method, reason }) => ({
      name,
      shape,
      size,
      module,
      method,
      reason,
    })),
    loss: h.loss,
    optimizers: h.optimizers.map((o) => ({ name: o.name, groups: o.groups.map((g) => ({ ...g.hyperparameters })) })),
    config: h.config,
    schedule: h.schedule,
    curvature: h.curvature,
    quantities: h.quantities.map((q) => ({
      name: q.name,
      kind: q.kind,
      layerwise: q.layerwise,
      unit: q.unit,
      description: q.description,
      schedule: q.schedule,
      options: { ...q.options },
      defined_for_sgd: q.definedForSgd,
    })),
    versions: { ...h.versions },
    git_commit: h.gitCommit,
    batch_size: h.batchSize,
    covered: h.covered,
    notes: [...h.notes],
    options: { ...h.options },
    steps_per_epoch: h.stepsPerEpoch,
  };
}

function decodeAlpha(a: pb.AlphaFit): AlphaFit {
  return {
    step: a.step,
    alpha: a.hasAlpha ? a.alpha : null,
    length: a.length,
    loss_start: a.lossStart,
    loss_end: a.lossEnd,
    slope_start: a.slopeStart,
    slope_end: a.slopeEnd,
    loss_var_start: a.lossVarStart,
    loss_var_end: a.lossVarEnd,
    slope_var_start: a.slopeVarStart,
    slope_var_end: a.slopeVarEnd,
    w0: a.w0,
    w1: a.w1,
    w2: a.w2,
  };
}

const decodeFinding = ({ evidence, ...own }: pb.Finding): Finding => ({
  ...own,
  evidence: evidence.map((rest) => ({ ...rest })),
});

function convertHistogram(h: pb.Histogram): HistogramData {
  return {
    quantity: h.quantity,
    step: h.step,
    layer: h.layer,
    shape: [...(h.counts?.shape ?? [])],
    counts: floats(h.counts),
    edges: floats(h.edges),
    parameter_edges: h.parameterEdges ? floats(h.parameterEdges) : null,
    nan: h.nan,
    pos_inf: h.posInf,
    neg_inf: h.negInf,
    below: h.below,
    above: h.above,
    parameter_below: h.parameterBelow,
    parameter_above: h.parameterAbove,
  };
}

export function decodeHistogram(bytes: Uint8Array): HistogramData {
  return convertHistogram(decode("Histogram", bytes) as unknown as pb.Histogram);
}

function decodeColumn(column: pb.Column, seq: Uint32Array): Column {
  const values = floats(column.values);
  const rows = column.rows ? integers(column.rows) : null;
  const own = rows ? rows.map((row) => seq[row]) : seq;
  if (own.length !== values.length) throw new Error("a column and its rows differ in length");
  return { name: column.name, layer: column.layer, seq: own, values, decimated: column.decimated };
}

export function decodeBatch(bytes: Uint8Array): Batch {
  const b = decode("Batch", bytes) as unknown as pb.Batch;
  const seq = integers(b.seq);
  const step = integers(b.step);
  const time = floats(b.time);
  const wall_time = floats(b.wallTime);
  const epoch = b.epoch ? floats(b.epoch) : null;
  const triggered = b.triggered ? Uint8Array.from(decodeArray(b.triggered)) : null;
  if ([step, time, wall_time, epoch, triggered].some((column) => column && column.length !== seq.length))
    throw new Error("rows of a batch differ in length");
  const missing = b.notes.flatMap((note) =>
    note.missing.map(({ name, reason }) => ({ seq: seq[note.row], name, reason })),
  );
  return {
    run: b.run,
    run_id: b.runId,
    from_seq: b.fromSeq,
    to_seq: b.toSeq,
    replace: b.replace,
    drop_from_step: b.dropFromStep,
    header: b.header ? decodeHeader(b.header) : null,
    seq,
    step,
    time,
    wall_time,
    epoch,
    triggered,
    columns: b.columns.map((column) => decodeColumn(column, seq)),
    alphas: b.alphas.map(decodeAlpha),
    warnings: b.warnings.map(({ step, kind, quantity, layer, message }) => ({ step, kind, quantity, layer, message })),
    findings: b.findings.map(decodeFinding),
    missing,
    top_samples: b.notes
      .filter((note) => note.topSamples.length)
      .map((note) => ({ seq: seq[note.row], samples: [...note.topSamples] })),
    heavy: b.heavy.map((index) => ({ quantity: index.quantity, steps: integers(index.steps) })),
    histograms: b.histograms.map(convertHistogram),
    status: b.status
      ? {
          state: b.status.state,
          error: b.status.error,
          last_wall_time: b.status.lastWallTime,
          records: b.status.records,
          expected: b.status.expected,
          broken: b.status.broken,
        }
      : null,
  };
}

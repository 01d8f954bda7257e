// The only module that knows the protobuf: bytes in, plain columns out. Field names are those of the schema.
import { fromBinary } from "@bufbuild/protobuf";
import { unzlibSync } from "fflate";
import type * as pb from "./gen/cockpit_pb.ts";
import { BatchSchema, Codec, DType, HistogramSchema } from "./gen/cockpit_pb.ts";

export interface LayerInfo {
  name: string;
  shape: number[];
  size: number;
  module: string;
  method: string;
  reason: string;
}
export interface QuantityInfo {
  name: string;
  kind: string;
  layerwise: boolean;
  unit: string;
  description: string;
  schedule: string;
  options: Record<string, string>;
  defined_for_sgd: boolean;
}
export interface OptimizerInfo {
  name: string;
  groups: Record<string, string>[];
}
export interface Header {
  revision: number;
  name: string;
  created: number;
  model: string;
  num_parameters: number;
  layers: LayerInfo[];
  loss: string;
  optimizers: OptimizerInfo[];
  config: string;
  schedule: string;
  curvature: string;
  quantities: QuantityInfo[];
  versions: Record<string, string>;
  git_commit: string;
  batch_size: number;
  covered: number;
  notes: string[];
  options: Record<string, string>;
  steps_per_epoch: number;
}
export interface AlphaFit {
  step: number;
  alpha: number | null;
  length: number;
  loss_start: number;
  loss_end: number;
  slope_start: number;
  slope_end: number;
  loss_var_start: number;
  loss_var_end: number;
  slope_var_start: number;
  slope_var_end: number;
  w0: number;
  w1: number;
  w2: number;
}
export interface Notice {
  step: number;
  kind: string;
  quantity: string;
  layer: string;
  message: string;
}
export interface Column {
  name: string;
  layer: string;
  seq: Uint32Array;
  values: Float64Array;
  decimated: boolean;
}
export interface Missing {
  seq: number;
  name: string;
  reason: string;
}
export interface HistogramData {
  quantity: string;
  step: number;
  layer: string;
  shape: number[];
  counts: Float64Array; // row-major; 2D: [gradient bins, parameter bins]
  edges: Float64Array;
  parameter_edges: Float64Array | null;
  nan: number;
  pos_inf: number;
  neg_inf: number;
  below: number;
  above: number;
  parameter_below: number;
  parameter_above: number;
}
export interface RunStatus {
  state: string;
  error: string;
  last_wall_time: number;
  records: number;
  expected: number;
  broken: number;
}
export interface Batch {
  run: string;
  run_id: string;
  from_seq: number;
  to_seq: number;
  replace: boolean;
  drop_from_step: number;
  header: Header | null;
  seq: Uint32Array;
  step: Uint32Array;
  time: Float64Array;
  wall_time: Float64Array;
  epoch: Float64Array | null;
  triggered: Uint8Array | null;
  columns: Column[];
  alphas: AlphaFit[];
  warnings: Notice[];
  missing: Missing[];
  heavy: { quantity: string; steps: Uint32Array }[];
  histograms: HistogramData[];
  status: RunStatus | null;
}

type Numbers = Float64Array | Float32Array | Uint32Array | Int32Array | Uint8Array;

// Bytes inside a message start at any offset, typed arrays only at multiples of their element size: copy first.
function decodeArray(array: pb.Array | undefined): Numbers {
  if (!array) return new Float64Array(0);
  const raw = array.codec === Codec.ZLIB ? unzlibSync(array.data) : array.data.slice();
  const buffer = raw.buffer.slice(raw.byteOffset, raw.byteOffset + raw.byteLength) as ArrayBuffer;
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
  return convertHistogram(fromBinary(HistogramSchema, bytes));
}

function decodeColumn(column: pb.Column, seq: Uint32Array): Column {
  const values = floats(column.values);
  const rows = column.rows ? integers(column.rows) : null;
  const own = rows ? rows.map((row) => seq[row]) : seq;
  if (own.length !== values.length) throw new Error("a column and its rows differ in length");
  return { name: column.name, layer: column.layer, seq: own, values, decimated: column.decimated };
}

export function decodeBatch(bytes: Uint8Array): Batch {
  const b = fromBinary(BatchSchema, bytes);
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
    missing,
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

// What panels see of the data: plain objects and typed arrays, named as in the schema.

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
/** One number that a finding rests on; `low` to `high` is its healthy range, infinite where it is open. */
export interface Evidence {
  name: string;
  value: number;
  low: number;
  high: number;
  unit: string;
  step: number;
  layer: string;
  text: string;
}
/** What is wrong with a run. The latest of a name counts. */
export interface Finding {
  name: string;
  severity: string; // "broken", "likely", "advice"
  text: string;
  since: number;
  layers: string[];
  evidence: Evidence[];
  remedy: string;
  confidence: number;
  explains: string[];
  retracted: boolean;
  step: number;
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
  findings: Finding[];
  missing: Missing[];
  top_samples: { seq: number; samples: number[] }[]; // places in the batch of the largest gradients, largest first
  heavy: { quantity: string; steps: Uint32Array }[];
  histograms: HistogramData[];
  status: RunStatus | null;
}

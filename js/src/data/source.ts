// Where the panels get their data. A host implements this; a panel never knows which host it is in.

export interface RunInfo {
  run: string;
  run_id: string;
  seq: number; // records that the host knows of
  state: string;
}

export type Connection = "connecting" | "live" | "paused" | "disconnected" | "static";

export interface SourceStatus {
  connection: Connection;
  message?: string; // shown as it is, as text
  runs?: RunInfo[]; // every run that could be shown, loaded or not
  progress?: number; // 0 to 1 while a long run is being loaded
}

/** What a user's own function shows for a sample: words, or a picture as the address of its data, or both. */
export interface Sample {
  text: string;
  picture: string;
}

export interface Source {
  /** The newest histograms arrive with the Batches: ask only for a step that the user chose. */
  readonly pushes?: boolean;
  /** Begins to deliver: serialised Batch messages of the schema, in any order, as often as the host likes. */
  start(onBatch: (bytes: Uint8Array) => void, onStatus: (status: SourceStatus) => void): void;
  /** Ends everything: no timer, request or listener remains. */
  stop(): void;
  /** One serialised Histogram; null if there is none at this step, or if it has been delivered inside a Batch. */
  histogram(run: string, quantity: string, step: number, layer: string | null): Promise<Uint8Array | null>;
  /** Asks that the layer-wise columns of one name be delivered from now on; resolves when the first have been. */
  layers(run: string, name: string): Promise<void>;
  /** Asks for the records `from` to `to` of a thinned run again, with about `points` values per column. */
  detail?(run: string, from: number, to: number, points: number): Promise<void>;
  /** Which runs the user looks at; the host need not deliver others. */
  focus?(runs: string[]): void;
  /** The user paused or resumed live updates. */
  pause?(paused: boolean): void;
  /** Whether this run can be stopped from here, and whether it was asked to. */
  canStop?(run: string): boolean;
  isStopping?(run: string): boolean;
  /** The user wants this run's training to end at its next step. Absent where the host cannot. */
  requestStop?(run: string): void;
  /** What the user's own function shows for samples, by their ids. Absent where the user gave none. */
  samples?(ids: number[]): Promise<Map<number, Sample>>;
  /** Fetches what is new at once. */
  refresh?(): void;
}

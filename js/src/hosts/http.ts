// Data over HTTP: a list of runs, then what is new in each chosen run, while anybody looks.
import type { RunInfo, Source, SourceStatus } from "../data/source.ts";

const INTERVAL = 1000; // ms from one look at the list to the next
// While a run that is looked at grows: TensorBoard itself may take a second to read a record, and the next one is left for us.
const LIVE_INTERVAL = 350;
const WHOLE_LIMIT = 20_000; // records of a run that is fetched whole after the first picture
const FIRST_POINTS = 1000; // enough for that picture
const LONG_POINTS = 2000; // of a longer run, which stays as it is until somebody looks closer
const LAYER_POINTS = 2000;
const PARALLEL = 3;

interface Cursor {
  run_id: string;
  seq: number; // everything before it was fetched
  whole: boolean; // nothing more is to be fetched
  complete: boolean; // every record is here, not only every extreme
  layers: Map<string, number>; // name -> cursor of its layer-wise columns
}

export class HttpSource implements Source {
  private onBatch: (bytes: Uint8Array) => void = () => {};
  private onStatus: (status: SourceStatus) => void = () => {};
  private cursors = new Map<string, Cursor>();
  private infos: RunInfo[] = [];
  private order: string[] = [];
  private chosen: string[] | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private abort = new AbortController();
  private busy = false;
  private again = false;
  private paused = false;
  private failures = 0;
  private firstPicture: () => void = () => {};
  // The curves of all runs come first: what panels ask for besides waits until they are here.
  private ready = new Promise<void>((resolve) => {
    this.firstPicture = resolve;
  });

  constructor(private readonly base: string) {}

  start(onBatch: (bytes: Uint8Array) => void, onStatus: (status: SourceStatus) => void): void {
    this.onBatch = onBatch;
    this.onStatus = onStatus;
    const { signal } = this.abort;
    document.addEventListener("visibilitychange", () => this.refresh(), { signal });
    window.addEventListener("resize", () => this.refresh(), { signal });
    this.refresh();
  }

  stop(): void {
    clearTimeout(this.timer);
    this.abort.abort();
  }

  // A tab that TensorBoard put aside has no height, but is not "hidden".
  private get watched(): boolean {
    return !document.hidden && window.innerHeight > 0;
  }

  refresh(): void {
    clearTimeout(this.timer);
    if (this.abort.signal.aborted) return;
    if (this.busy) {
      this.again = true;
      return;
    }
    void this.poll();
  }

  pause(paused: boolean): void {
    this.paused = paused;
    if (!paused) this.refresh();
  }

  focus(runs: string[]): void {
    this.chosen = runs;
    this.refresh();
  }

  setOrder(names: string[]): void {
    this.order = names;
    this.tellRuns();
  }

  private async poll(): Promise<void> {
    if (!this.watched || (this.paused && this.infos.length)) {
      this.timer = setTimeout(() => this.refresh(), INTERVAL);
      return;
    }
    this.busy = true;
    this.again = false;
    const begun = performance.now();
    try {
      this.infos = await this.fetchRuns();
      this.tellRuns();
      await this.fetchChosen();
      this.failures = 0;
      this.onStatus({ connection: this.paused ? "paused" : "live", progress: 1 });
    } catch (error) {
      if (this.abort.signal.aborted) return;
      this.failures++;
      const message =
        error instanceof TypeError ? "TensorBoard does not answer" : String((error as Error).message ?? error);
      this.onStatus({ connection: "disconnected", message });
    } finally {
      this.busy = false;
    }
    this.timer = setTimeout(() => this.refresh(), this.again ? 0 : this.waitFor(performance.now() - begun));
  }

  /** How long to wait after an answer that took `took` ms. */
  private waitFor(took: number): number {
    if (this.failures) return INTERVAL * Math.min(16, 2 ** this.failures);
    const chosen = this.chosen ?? this.infos.map((info) => info.run).slice(0, 10);
    const live = this.infos.some(
      ({ run, state }) => ["running", "waiting", ""].includes(state) && chosen.includes(run),
    );
    // At most half of the time is spent on asking, however slow the answers are.
    return Math.max((live ? LIVE_INTERVAL : INTERVAL) - took, Math.min(took, INTERVAL), 50);
  }

  private tellRuns(): void {
    const place = new Map(this.order.map((name, i) => [name, i]));
    const at = (name: string) => place.get(name) ?? this.order.length;
    const runs = this.infos
      .map((info, i) => ({ info, i }))
      .sort((a, b) => at(a.info.run) - at(b.info.run) || a.i - b.i);
    this.onStatus({ connection: this.paused ? "paused" : "live", runs: runs.map(({ info }) => info) });
  }

  private async get(path: string, query: Record<string, string | number>): Promise<Response> {
    const words = new URLSearchParams(Object.entries(query).map(([key, value]) => [key, String(value)]));
    return fetch(`${this.base}${path}?${words}`, { signal: this.abort.signal });
  }

  private async fetchRuns(): Promise<RunInfo[]> {
    const response = await this.get("runs", {});
    if (!response.ok) throw new Error(`runs: ${response.status} ${response.statusText}`);
    const list: unknown = await response.json();
    return Array.isArray(list) ? list.filter((info) => typeof info?.run === "string") : [];
  }

  private async fetchChosen(): Promise<void> {
    const names = this.infos.map((info) => info.run);
    const chosen = this.chosen ?? names.slice(0, 10);
    const jobs = this.infos.filter((info) => chosen.includes(info.run)).flatMap((info) => this.jobsOf(info));
    let done = 0;
    const worker = async () => {
      for (let job = jobs.shift(); job; job = jobs.shift()) {
        await job();
        done++;
        if (jobs.length > 2) this.onStatus({ connection: "live", progress: done / (done + jobs.length) });
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, worker));
    if (done > 1) this.onStatus({ connection: "live", progress: 1 });
    this.firstPicture();
    const rest = this.infos.filter((info) => chosen.includes(info.run) && this.cursors.get(info.run)?.whole === false);
    for (const info of rest) await this.fetchWhole(info);
  }

  private jobsOf(info: RunInfo): (() => Promise<void>)[] {
    let cursor = this.cursors.get(info.run);
    if (!cursor || cursor.run_id !== info.run_id || info.seq < cursor.seq) {
      cursor = {
        run_id: info.run_id,
        seq: 0,
        whole: true,
        complete: false,
        layers: new Map([...(cursor?.layers.keys() ?? [])].map((name) => [name, 0])),
      };
      this.cursors.set(info.run, cursor);
    }
    const own = cursor;
    const jobs: (() => Promise<void>)[] = [];
    // The state of a run changes without a new record (it crashed), so the last record is asked for again then.
    const known = this.states.get(info.run);
    if (info.seq > own.seq || own.seq === 0 || known !== info.state) jobs.push(() => this.fetchNew(info, own));
    for (const [name, seq] of own.layers) if (seq < info.seq) jobs.push(() => this.fetchLayers(info, own, name));
    return jobs;
  }

  private states = new Map<string, string>();

  /** Returns the record to go on from: of a long run, one answer holds only a part. */
  private async fetchBatch(query: Record<string, string | number>, known = 0): Promise<number> {
    const response = await this.get("batch", query);
    if (response.status === 404) return 0; // the run has vanished meanwhile
    if (!response.ok) throw new Error(`batch: ${response.status} ${response.statusText}`);
    this.onBatch(new Uint8Array(await response.arrayBuffer()));
    const next = response.headers.get("X-Cockpit-To-Seq");
    return Math.min(known, next === null ? known : Number(next) || 0);
  }

  /** Asks until all that the list knows of is there, or nothing more comes. */
  private async fetchParts(info: RunInfo, since: number, query: Record<string, string | number>): Promise<number> {
    let at = since;
    for (;;) {
      const next = await this.fetchBatch({ run: info.run, since: at, ...query }, info.seq);
      if (next <= at || next >= info.seq) return Math.max(at, next);
      at = next;
      this.onStatus({ connection: "live", progress: at / info.seq });
    }
  }

  private async fetchNew(info: RunInfo, cursor: Cursor): Promise<void> {
    const first = cursor.seq === 0;
    const since = first ? 0 : Math.min(cursor.seq, info.seq);
    const points = info.seq > WHOLE_LIMIT ? LONG_POINTS : FIRST_POINTS;
    cursor.seq = await this.fetchParts(info, since, { layers: 0, ...(first ? { max_points: points } : {}) });
    if (first) cursor.complete = info.seq <= points;
    if (first) cursor.whole = cursor.complete || info.seq > WHOLE_LIMIT;
    this.states.set(info.run, info.state);
  }

  private async fetchWhole(info: RunInfo): Promise<void> {
    const cursor = this.cursors.get(info.run);
    if (!cursor) return;
    cursor.whole = true;
    await this.fetchBatch({ run: info.run, since: 0, layers: 0 });
    cursor.complete = true;
  }

  private async fetchLayers(info: RunInfo, cursor: Cursor, name: string): Promise<void> {
    const since = cursor.layers.get(name) ?? 0;
    const query = { names: name, layers: 1, ...(since ? {} : { max_points: LAYER_POINTS }) };
    cursor.layers.set(name, await this.fetchParts(info, since, query));
  }

  async histogram(run: string, quantity: string, step: number, layer: string | null): Promise<Uint8Array | null> {
    await this.ready;
    const response = await this.get("histogram", { run, quantity, step, ...(layer ? { layer } : {}) });
    if (response.status === 404) return null;
    if (!response.ok) throw new Error(`histogram: ${response.status}`);
    return new Uint8Array(await response.arrayBuffer());
  }

  async detail(run: string, from: number, to: number, points: number): Promise<void> {
    const cursor = this.cursors.get(run);
    if (!cursor) throw new Error("unknown run");
    const stretch = { run, since: from, until: to, max_points: points };
    if (!cursor.complete) await this.fetchBatch({ ...stretch, layers: 0 });
    for (const name of cursor.layers.keys()) await this.fetchBatch({ ...stretch, names: name, layers: 1 });
  }

  async layers(run: string, name: string): Promise<void> {
    await this.ready;
    const info = this.infos.find((own) => own.run === run);
    const cursor = this.cursors.get(run);
    if (!info || !cursor) throw new Error("unknown run");
    if (!cursor.layers.has(name)) {
      cursor.layers.set(name, 0);
      await this.fetchLayers(info, cursor, name);
    }
  }
}

// Questions to a kernel that may be busy for hours: they carry a number, wait, and are only asked when the user did something.
import type { Sample, Source } from "../data/source.ts";

export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(name: string, act: (...args: never[]) => void): void;
  off(name?: string | null, act?: ((...args: never[]) => void) | null): void;
  send(content: unknown): void;
}

export interface RunState {
  can_stop?: boolean;
  stop_requested?: boolean;
}

export class KernelSource implements Source {
  readonly pushes = true; // the newest histograms come by themselves
  states: Record<string, RunState> = {};
  private waiting = new Map<number, () => void>();
  private next = 1;
  private shown = new Map<number, Sample>();
  /** Only where the user gave a function that shows samples. */
  samples?: Source["samples"];

  constructor(private readonly model: Model) {}

  /** The kernel can show samples: it may be asked to. */
  showSamples(): void {
    this.samples = async (ids) => {
      await this.ask({ op: "samples", ids });
      return this.shown;
    };
  }

  takeSample(id: unknown, text: unknown, picture: Uint8Array | null): void {
    if (typeof id !== "number") return;
    const address = picture ? `data:${kindOf(picture)};base64,${toBase64(picture)}` : "";
    this.shown.set(id, { text: typeof text === "string" ? text : "", picture: address });
  }

  start(): void {}
  stop(): void {
    for (const id of [...this.waiting.keys()]) this.answered(id);
  }

  /** The kernel replied; what it sent is in the store already. */
  answered(id: unknown): void {
    if (typeof id !== "number") return;
    this.waiting.get(id)?.();
    this.waiting.delete(id);
  }

  private ask(content: Record<string, unknown>): Promise<void> {
    const id = this.next++;
    return new Promise((resolve) => {
      this.waiting.set(id, resolve);
      this.model.send({ ...content, id });
    });
  }

  async histogram(run: string, quantity: string, step: number, layer: string | null): Promise<null> {
    await this.ask({ op: "histogram", run, quantity, step, layer: layer ?? "" });
    return null;
  }

  layers(run: string, name: string): Promise<void> {
    return this.ask({ op: "layers", run, names: [name], layers: [] });
  }

  detail(run: string, from: number, to: number, points: number): Promise<void> {
    return this.ask({ op: "detail", run, from, to, points });
  }

  canStop(run: string): boolean {
    return Boolean(this.states[run]?.can_stop);
  }

  isStopping(run: string): boolean {
    return Boolean(this.states[run]?.stop_requested);
  }

  requestStop(run: string): void {
    this.model.send({ op: "stop", run });
  }

  resync(): void {
    void this.ask({ op: "resync" });
  }
}

const kindOf = (picture: Uint8Array) => (picture[0] === 0xff ? "image/jpeg" : "image/png");

function toBase64(bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}

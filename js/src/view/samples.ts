// What the user's own function makes of the ids of samples: a picture or words. Asked for once each, a few at a time.
import type { Sample, Source } from "../data/source.ts";

const AT_ONCE = 25;

export class SampleFetcher {
  private readonly known = new Map<number, Sample | null>();
  private readonly wishes = new Set<number>();
  private busy = false;
  private ended = false;

  constructor(
    private readonly source: Source,
    private readonly changed: () => void,
  ) {}

  /** undefined = not here yet, null = there is nothing to show. */
  get(id: number, ask: boolean): Sample | null | undefined {
    const sample = this.known.get(id);
    if (sample === undefined && ask) this.wishes.add(id);
    return sample;
  }

  endPicture(): void {
    if (this.busy || !this.wishes.size || this.ended) return;
    const ids = [...this.wishes].slice(0, AT_ONCE);
    this.wishes.clear();
    this.busy = true;
    const keep = (fetched: Map<number, Sample>) => {
      for (const id of ids) this.known.set(id, fetched.get(id) ?? null);
    };
    (this.source.samples?.(ids) ?? Promise.resolve(new Map<number, Sample>()))
      .then(keep, () => keep(new Map()))
      .finally(() => {
        this.busy = false;
        if (!this.ended) this.changed();
      });
  }

  stop(): void {
    this.ended = true;
  }
}

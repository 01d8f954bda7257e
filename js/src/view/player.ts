// Plays through the training: the whole of it takes twelve seconds, however long it was.

const SECONDS = 12;
const LONGEST_FRAME = 0.2; // seconds; after a pause it goes on where it stood

export class Player {
  playing = false;
  private from = 0; // time of the last frame

  toggle(): boolean {
    this.playing = !this.playing;
    this.from = 0;
    return this.playing;
  }

  stop(): void {
    this.playing = false;
  }

  /** Where the frame at `now` stands; null = at the end, and no longer playing. */
  advance(now: number, step: number | null, last: number | null): number | null {
    if (last === null || step === null || step >= last) {
      this.playing = false;
      return null;
    }
    const passed = this.from ? Math.min(LONGEST_FRAME, (now - this.from) / 1000) : 0;
    this.from = now;
    return Math.min(last, step + (last / SECONDS) * passed);
  }
}

// When to draw: at once for what the user does; for data that arrives, at a pace that a slow machine can bear.

const BUDGET = 10; // ms of drawing per frame while a hand waits; the browser needs about as much again to show it
const QUIET_BUDGET = 120; // ms otherwise: each further frame would compose the whole page once more
const ATTENTION = 1000; // ms after which a hand has let go
const PACE = 14; // what comes by itself is drawn in a fifteenth of the time at most: on a slow or busy machine, less often
const LONGEST_REST = 1000; // ms, however slow the machine
const LOADING_REST = 2500; // ms, while more is on its way: a picture of half of it would only delay the rest
const LISTEN = 1000; // ms between two looks at the clock while a run should bring more
const REST = 300; // ms before a picture is put into words; a hand that goes on puts that off
const WORDS = 3000; // ms between the words for pictures of a run that grows

interface Acts {
  draw(now: number): void;
  tell(): void; // puts the picture into words
  listen(): boolean; // looks at the clock; false = no longer in the page
}

const later = (act: () => void, wait: number) => setTimeout(act, wait) as unknown as number;

export class Pacer {
  private frame = 0;
  private waiting = 0;
  private resting = 0;
  private listening = 0;
  private began = 0;
  private budget = BUDGET;
  private restUntil = 0; // when the next message may be drawn
  private handled = Number.NEGATIVE_INFINITY; // when the user last did something
  private told = Number.NEGATIVE_INFINITY; // when pictures were last put into words
  private ended = false;

  constructor(private readonly acts: Acts) {}

  /** The user did something. */
  touch(): void {
    this.handled = performance.now();
  }

  /** What was being loaded is whole now: somebody waits for it. */
  hurry(): void {
    this.restUntil = 0;
  }

  /** A picture with the next frame. */
  schedule(): void {
    if (!this.frame && !this.ended) this.frame = requestAnimationFrame((now) => this.acts.draw(now));
  }

  /** Data that arrived is drawn after a pause since the last picture; a status comes with every message. */
  scheduleRested(): void {
    if (this.ended) return;
    const wait = this.restUntil - performance.now();
    if (wait <= 0) this.schedule();
    else this.waiting ||= later(() => this.schedule(), wait);
  }

  /** A picture begins; the time at which the rest of it is left for the next frame. `now` is 0 outside of the loop. */
  begin(now: number, playing: boolean): number {
    cancelAnimationFrame(this.frame); // drawn at once, outside of the loop: the frame that waited is this one
    this.frame = 0;
    clearTimeout(this.waiting);
    this.waiting = 0;
    this.began = performance.now();
    this.budget = playing || this.began - this.handled < ATTENTION ? BUDGET : QUIET_BUDGET;
    return now ? this.began + this.budget : Number.POSITIVE_INFINITY;
  }

  end(grows: boolean, loading: boolean): void {
    const ended = performance.now();
    this.tellSoon(ended, this.budget === BUDGET || !grows);
    this.restUntil = ended + Math.min(loading ? LOADING_REST : LONGEST_REST, PACE * (ended - this.began));
    clearTimeout(this.listening);
    if (grows) this.listening = later(() => this.listen(), LISTEN);
  }

  // A training that was interrupted sends nothing, not even that. Taken off the page, the next picture listens again.
  private listen(): void {
    if (this.acts.listen()) this.listening = later(() => this.listen(), LISTEN);
  }

  private tellSoon(now: number, rests: boolean): void {
    if (rests) {
      clearTimeout(this.resting);
      this.resting = 0;
    }
    const wait = rests ? REST : Math.max(REST, this.told + WORDS - now);
    this.resting ||= later(() => {
      this.resting = 0;
      this.told = performance.now();
      this.acts.tell();
    }, wait);
  }

  stop(): void {
    this.ended = true;
    cancelAnimationFrame(this.frame);
    for (const timer of [this.waiting, this.resting, this.listening]) clearTimeout(timer);
  }
}

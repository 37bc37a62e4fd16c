/** Waiting that can be given up. */

/** A signal that is aborted with any of the others. `release` lets go of them: they may live far longer. */
export class Cut {
  readonly #controller = new AbortController();
  readonly #sources: AbortSignal[];

  constructor(...sources: (AbortSignal | undefined)[]) {
    this.#sources = sources.filter((source) => source !== undefined);
    for (const source of this.#sources) {
      source.addEventListener("abort", this.#follow);
    }
    this.#follow();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  readonly #follow = (): void => {
    const aborted = this.#sources.find((source) => source.aborted);
    if (aborted) {
      this.abort(aborted.reason);
    }
  };

  abort(reason: unknown): void {
    this.#controller.abort(reason);
  }

  release(): void {
    for (const source of this.#sources) {
      source.removeEventListener("abort", this.#follow);
    }
  }
}

/** The promise's value, unless the signal is aborted before. */
export function unless<T>(signal: AbortSignal | undefined, promise: Promise<T>): Promise<T> {
  if (!signal) {
    return promise;
  }
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      // A promise that is given up may never end, and the signal may live for long.
      signal.removeEventListener("abort", abort);
      reject(signal.reason);
    };
    const end = (): void => signal.removeEventListener("abort", abort);
    promise.then(resolve, reject).finally(end);
    if (signal.aborted) {
      abort();
    } else {
      signal.addEventListener("abort", abort);
    }
  });
}

/** The rhythm of tries: the first delay, and how it grows. */
export interface Backoff {
  /** Delay before the second try. */
  firstMs: number;
  /** Longest delay. */
  longestMs: number;
  /** Factor from one delay to the next. */
  factor: number;
  /** Part of a delay that is left to chance, from 0 to 1. */
  jitter: number;
}

export const BACKOFF: Backoff = { firstMs: 250, longestMs: 15_000, factor: 2, jitter: 0.5 };

/** The delay before a try; `failures` is how many tries have failed before it. */
export function delayMs({ firstMs, longestMs, factor, jitter }: Backoff, failures: number): number {
  return Math.min(firstMs * factor ** Math.max(failures - 1, 0), longestMs) * (1 - jitter * Math.random());
}

/** Pauses that end early when there is reason to hope. */
export class Pauses {
  readonly #waiting = new Set<() => void>();

  async pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
    let end = (): void => {};
    const over = new Promise<void>((resolve) => {
      end = resolve;
    });
    const timer = setTimeout(end, ms);
    this.#waiting.add(end);
    try {
      await unless(signal, over);
    } finally {
      clearTimeout(timer);
      this.#waiting.delete(end);
    }
  }

  /** Ends all pauses. */
  wake(): void {
    for (const end of this.#waiting) {
      end();
    }
  }
}

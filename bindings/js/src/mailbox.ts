/** Messages that have come and were not read yet. */

export interface Weighed {
  /** Bytes that it counts for. */
  readonly bytes: number;
}

export class Mailbox<T extends Weighed> implements AsyncIterableIterator<T> {
  #held: T[] = [];
  #bytes = 0;
  #takers: ((result: IteratorResult<T> | Promise<IteratorResult<T>>) => void)[] = [];
  /** The answer to readers when nothing more comes. */
  #end: Promise<IteratorResult<T>> | undefined;
  #roomy: (() => void)[] = [];

  constructor(readonly maximumBytes: number) {}

  get isFull(): boolean {
    return this.#bytes >= this.maximumBytes;
  }

  put(message: T): void {
    const taker = this.#takers.shift();
    if (taker) {
      taker({ done: false, value: message });
    } else if (!this.#end) {
      this.#held.push(message);
      this.#bytes += message.bytes;
    }
  }

  /** Waits until it is not full. One message may go beyond the bound. */
  room(): Promise<void> {
    return new Promise((resolve) => this.#roomy.push(resolve));
  }

  /** No more messages come. With an error, those that are here are read before it; without, nothing is. */
  end(error?: unknown): void {
    this.#end ??= error === undefined ? this.return() : Promise.reject(error);
    // Perhaps nobody reads.
    this.#end.catch(() => {});
    if (error === undefined) {
      this.#held = [];
      this.#bytes = 0;
    }
    for (const taker of this.#takers.splice(0)) {
      taker(this.#end);
    }
    this.#letIn();
  }

  /** Takes messages out that nobody has read. */
  discard(which: (message: T) => boolean): T[] {
    const taken = this.#held.filter(which);
    this.#held = this.#held.filter((message) => !which(message));
    this.#bytes = this.#held.reduce((sum, message) => sum + message.bytes, 0);
    this.#letIn();
    return taken;
  }

  #letIn(): void {
    if (!this.isFull) {
      for (const go of this.#roomy.splice(0)) {
        go();
      }
    }
  }

  next(): Promise<IteratorResult<T>> {
    const message = this.#held.shift();
    if (message) {
      this.#bytes -= message.bytes;
      this.#letIn();
      return Promise.resolve({ done: false, value: message });
    }
    return this.#end ?? new Promise((resolve) => this.#takers.push(resolve));
  }

  /** The end of one loop is not the end of the messages. */
  return(): Promise<IteratorResult<T>> {
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}

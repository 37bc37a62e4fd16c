/**
 * The messages that the application has and that it has not acknowledged, and the acknowledgements that the broker has not
 * confirmed. A session that goes on sends all of them again, and this knows which of them are in the application's hands.
 */

/** A message by its id in the session. */
export interface Entry {
  readonly id: number;
  /** The connection on which it was sent last. The broker knows ids of this connection for sure. */
  connection: number;
  /** Whether the application has acknowledged it. */
  isDone: boolean;
  fate: Promise<boolean> | undefined;
  settle: (isKnown: boolean) => void;
}

/** Most acknowledgements of one request. */
const BATCH = 256;

export class Ledger {
  #entries = new Map<number, Entry>();
  #unsent = new Set<Entry>();
  #connection = 0;
  /** Ids that were settled since the connection began: their repetitions may be on the way. */
  #settled = new Set<number>();
  /** Whether the connection has come to messages that are sent for the first time. */
  #isPastRepetitions = false;

  /** A connection is tried. Acknowledgements without an answer are given again. */
  begin(): void {
    this.#connection++;
    this.#isPastRepetitions = false;
    this.#settled.clear();
    for (const entry of this.#entries.values()) {
      if (entry.isDone) {
        this.#unsent.add(entry);
      }
    }
  }

  /** Notes a message; `undefined` where the application has it already. */
  receive(id: number, redelivered: boolean): Entry | undefined {
    const known = redelivered ? this.#entries.get(id) : undefined;
    if (known) {
      known.connection = this.#connection;
      if (known.isDone) {
        this.#unsent.add(known);
      }
      return undefined;
    }
    if (redelivered && this.#settled.has(id)) {
      return undefined;
    }
    if (!redelivered && !this.#isPastRepetitions) {
      // Repetitions come first. So those that did not come are settled, or have come by other ids.
      this.#isPastRepetitions = true;
      this.#settled.clear();
      this.#forget((entry) => entry.connection !== this.#connection);
    }
    const entry: Entry = {
      id,
      connection: this.#connection,
      isDone: false,
      fate: undefined,
      settle: () => {},
    };
    this.#entries.set(id, entry);
    return entry;
  }

  /** The application is done with a message. */
  acknowledge(entry: Entry): Promise<boolean> {
    entry.fate ??= new Promise((resolve) => {
      entry.isDone = true;
      entry.settle = resolve;
      if (this.#entries.get(entry.id) === entry) {
        this.#unsent.add(entry);
      } else {
        resolve(false);
      }
    });
    return entry.fate;
  }

  /** Takes acknowledgements to be sent, all of one connection: their number has the broker's limit. */
  batch(): Entry[] {
    const [first] = this.#unsent;
    const batch = [...this.#unsent].filter((entry) => entry.connection === first?.connection).slice(0, BATCH);
    for (const entry of batch) {
      this.#unsent.delete(entry);
    }
    return batch;
  }

  /** These have no answer. The next one may be of a broker that has begun anew, so it says nothing for sure. */
  putBack(batch: readonly Entry[]): void {
    for (const entry of batch) {
      if (this.#entries.get(entry.id) === entry) {
        entry.connection = 0;
        this.#unsent.add(entry);
      }
    }
  }

  /** The broker has answered to these: with yes, or that it does not know them. */
  settle(batch: readonly Entry[], isYes: boolean): void {
    for (const entry of batch) {
      // After a restart the broker says yes to ids of before, and means nothing by it.
      entry.settle(isYes && entry.connection === this.#connection);
      if (!this.#isPastRepetitions) {
        this.#settled.add(entry.id);
      }
      this.#remove(entry);
    }
  }

  /** The highest id up to which everything is done, where there is one that was not sent yet. */
  takeDoneUpTo(): number | undefined {
    let upTo: number | undefined;
    for (const entry of this.#entries.values()) {
      if (entry.connection !== this.#connection) {
        // Not sent again before the next ones, so the session does not have it by this id.
        continue;
      }
      if (!entry.isDone) {
        break;
      }
      upTo = entry.id;
      entry.settle(false);
      this.#remove(entry);
    }
    return upTo;
  }

  /** These were not handed over, and come again. */
  drop(ids: readonly number[]): void {
    this.#forget((entry) => ids.includes(entry.id));
  }

  /** The session is gone, and its ids with it. */
  clear(): void {
    this.#settled.clear();
    this.#forget(() => true);
  }

  #forget(which: (entry: Entry) => boolean): void {
    for (const entry of [...this.#entries.values()].filter(which)) {
      entry.settle(false);
      this.#remove(entry);
    }
  }

  #remove(entry: Entry): void {
    if (this.#entries.get(entry.id) === entry) {
      this.#entries.delete(entry.id);
    }
    this.#unsent.delete(entry);
  }
}

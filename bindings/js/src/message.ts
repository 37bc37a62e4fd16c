/** A message that has come. */

import type { Frame } from "./frames.js";
import type { Weighed } from "./mailbox.js";

/** Bytes that a message without payload is counted for. */
const OVERHEAD_BYTES = 256;

export class Message implements Weighed {
  /** The broker's number for it in the session; 0 at QoS 0. */
  declare readonly id: number;
  declare readonly topic: string;
  declare readonly payload: Uint8Array;
  declare readonly qos: 0 | 1 | 2;
  /** Whether it was there before the subscription. */
  declare readonly retain: boolean;
  /** Whether it may have come before. */
  declare readonly redelivered: boolean;
  /** Whether the publisher says that the payload is text. */
  declare readonly isText?: boolean;
  /** Seconds in which it is of use, from when it came. */
  declare readonly expiryS?: number;
  declare readonly contentType?: string;
  declare readonly responseTopic?: string;
  declare readonly correlationData?: Uint8Array;
  declare readonly userProperties?: readonly [name: string, value: string][];
  readonly #acknowledge: () => Promise<boolean>;

  constructor(frame: Frame, acknowledge: () => Promise<boolean>) {
    Object.assign(this, frame);
    this.#acknowledge = acknowledge;
  }

  get bytes(): number {
    return this.payload.length + this.topic.length + OVERHEAD_BYTES;
  }

  /** The payload as text; bytes that are no UTF-8 become U+FFFD. */
  text(): string {
    return new TextDecoder().decode(this.payload);
  }

  json(): unknown {
    return JSON.parse(this.text());
  }

  /**
   * Says that the message is done. `true`: the broker has noted it, and the message does not come again, unless the broker is
   * killed within `store.cursor_interval_ms`. `false`: the broker has not said so, for example because it has begun anew, and
   * the message may come again, `redelivered`. It never rejects, and can be repeated.
   */
  ack(): Promise<boolean> {
    return this.#acknowledge();
  }
}

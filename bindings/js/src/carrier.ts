/** Carriers of the messages of a subscription, and the one by `fetch`. */

import { ConnectionError } from "./errors.js";
import { FrameReader, MEDIA_TYPE, TooLargeError } from "./frames.js";
import type { Requests } from "./requests.js";

export interface Carrier {
  /** The session's name, where the transport tells it. */
  readonly session?: string | undefined;
  /** The next frame without its Length, empty for a heartbeat; `undefined` at an end in order. */
  next(): Promise<Uint8Array | undefined>;
  close(): void;
}

/** The frames of a stream of bytes. */
export function framesOf(
  stream: ReadableStream<Uint8Array>,
  maximumBytes: number,
): { next(): Promise<Uint8Array | undefined>; cancel(): void } {
  const reader = stream.getReader();
  const frames = new FrameReader(maximumBytes);
  return {
    async next() {
      for (;;) {
        const frame = frames.next();
        if (frame) {
          return frame;
        }
        const { done, value } = await reader.read();
        if (done) {
          return undefined;
        }
        frames.push(value);
      }
    },
    cancel: () => void reader.cancel().catch(() => {}),
  };
}

/** An error of reading, which is a lost connection unless it is the client's own. */
export function asLost(error: unknown): unknown {
  return error instanceof TooLargeError || error instanceof ConnectionError
    ? error
    : new ConnectionError("the connection was lost", { cause: error });
}

export async function openStream(
  requests: Requests,
  target: string,
  signal: AbortSignal,
  maximumBytes: number,
): Promise<Carrier> {
  const response = await requests.open("GET", target, { headers: new Headers({ Accept: MEDIA_TYPE }), signal });
  const type = response.headers.get("Content-Type");
  if (type !== MEDIA_TYPE || !response.body) {
    void response.body?.cancel().catch(() => {});
    throw new ConnectionError(`the answer is not of a broker: ${type}`);
  }
  const frames = framesOf(response.body, maximumBytes);
  return {
    session: response.headers.get("Sterna-Session") ?? undefined,
    next: () => frames.next().catch((error: unknown) => Promise.reject(asLost(error))),
    close: frames.cancel,
  };
}

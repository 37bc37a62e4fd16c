/** A client for Sterna's publish-subscribe over HTTP. */

import { Client } from "./client.js";
import type { Options } from "./options.js";

export type { Client, State, StateEvent } from "./client.js";
export { ConnectionError, PublishError, RequestError, type Problem } from "./errors.js";
export { FrameError, TooLargeError, type Properties } from "./frames.js";
export type { Message } from "./message.js";
export type { CertificateHash, Options, Payload, PublishOptions, TransportName } from "./options.js";
export type { Token } from "./requests.js";
export type { Backoff } from "./signals.js";

/**
 * Connects to a broker; returns when the subscription stands. It tries until the broker is there: `signal` gives up. Rejects
 * with a `RequestError` where the broker refuses, and with a `TypeError` where the options ask for what cannot be had.
 */
export async function connect(address: string | URL, options: Options = {}): Promise<Client> {
  options.signal?.throwIfAborted();
  return new Client(address, options).start();
}

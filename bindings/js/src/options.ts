/** Options of a client and of a publication, checked at the call. */

import type { Properties } from "./frames.js";
import type { Identity } from "./requests.js";
import type { Backoff } from "./signals.js";

/** As of `WebTransport`: the SHA-256 of a certificate. */
export interface CertificateHash {
  algorithm: "sha-256";
  value: ArrayBuffer | Uint8Array<ArrayBuffer>;
}

export type TransportName = "webtransport" | "fetch";

export interface Options extends Identity {
  /** Filters of the topics that are subscribed to. Without any, and without a session, the client only publishes. */
  subscribe?: string | readonly string[];
  /** Name of a durable subscription: the broker keeps it, and its messages, while the client is away. */
  session?: string;
  /** Highest quality of service of deliveries; 1 by default. */
  qos?: 0 | 1 | 2;
  /** Whether retained messages come first; `true` by default. */
  retained?: boolean;
  /** Transports of deliveries, in the order in which they are tried. */
  transports?: readonly TransportName[];
  /** SHA-256 of certificates that are trusted for WebTransport, whoever has signed them. */
  serverCertificateHashes?: readonly CertificateHash[];
  /** Whether the token may be in the address, which WebTransport needs (`http.access_token_parameter`). */
  tokenInAddress?: boolean;
  /** The rhythm of tries to connect. */
  backoff?: Partial<Backoff>;
  /** Time without a sign of life after which a connection counts as lost; above `http.heartbeat_interval_s`. */
  silenceMs?: number;
  /** Bytes of messages that wait to be read; above it the client stops reading from the network. */
  maximumWaitingBytes?: number;
  /** Bytes of one message. */
  maximumMessageBytes?: number;
  /** Time in which a publication without an answer is tried again; below `http.idempotency_window_s`. */
  retryForMs?: number;
  /** Another `fetch`, such as `http2Fetch` of `@sterna/client/http2`. */
  fetch?: typeof globalThis.fetch;
  /** Gives up connecting. A client that is connected is ended by `close`. */
  signal?: AbortSignal;
}

export interface PublishOptions extends Properties {
  /** 1 by default. */
  qos?: 0 | 1 | 2;
  /** Whether it becomes the topic's retained message; an empty one clears it. */
  retain?: boolean;
  /** Gives up waiting. Whether the message is published is not known then. */
  signal?: AbortSignal;
  /** Name of the publication, for an application that repeats it by itself. */
  key?: string;
}

export type Payload = string | Uint8Array | ArrayBuffer;

const OPTIONS: readonly (keyof Options)[] = [
  "subscribe", "session", "qos", "retained", "transports", "serverCertificateHashes", "tokenInAddress", "backoff", "silenceMs",
  "maximumWaitingBytes", "maximumMessageBytes", "retryForMs", "fetch", "signal", "token", "user", "password", "credentials",
];
const PUBLISH_OPTIONS: readonly (keyof PublishOptions)[] = [
  "qos", "retain", "signal", "key", "isText", "expiryS", "contentType", "responseTopic", "correlationData", "userProperties",
];

function refuseUnknown(options: object, known: readonly string[]): void {
  for (const name of Object.keys(options)) {
    if (!known.includes(name)) {
      throw new TypeError(`there is no option ${name}`);
    }
  }
}

function checkQos(qos: unknown): void {
  if (qos !== undefined && qos !== 0 && qos !== 1 && qos !== 2) {
    throw new TypeError(`qos is 0, 1 or 2, not ${String(qos)}`);
  }
}

/** Options of a client in the form in which they are used. */
export function checkOptions(base: URL, options: Options): { filters: string[]; transports: TransportName[] } {
  refuseUnknown(options, OPTIONS);
  checkQos(options.qos);
  const { subscribe = [], session, token, user, serverCertificateHashes: hashes } = options;
  const filters = typeof subscribe === "string" ? [subscribe] : [...subscribe];
  if (filters.some((filter) => typeof filter !== "string" || filter === "")) {
    throw new TypeError("subscribe is a filter, or several");
  }
  if (session !== undefined && !/^[\w.-]{1,64}$/.test(session)) {
    throw new TypeError("session is 1 to 64 letters, digits, `.`, `_` and `-`");
  }
  if (token !== undefined && user !== undefined) {
    throw new TypeError("either token or user");
  }
  // The name of a session that the broker chooses is not shown to pages over WebTransport, so it could not be resumed.
  const canResume = session !== undefined || options.qos === 0 || filters.length === 0;
  const wanted = options.transports ?? (hashes ? ["webtransport"] : canResume ? ["webtransport", "fetch"] : ["fetch"]);
  const lack =
    typeof WebTransport === "undefined" ? "this runtime has none"
      : base.protocol !== "https:" ? "the address does not begin with https://"
        : user !== undefined ? "it carries no passwords"
          : token !== undefined && !options.tokenInAddress ? "it needs tokenInAddress for a token"
            : undefined;
  const transports = wanted.filter((name) => name !== "webtransport" || !lack);
  if (wanted.some((name) => name !== "webtransport" && name !== "fetch") || wanted.length === 0) {
    throw new TypeError("transports are webtransport and fetch");
  }
  if (transports.length === 0) {
    throw new TypeError(`no WebTransport: ${lack}`);
  }
  if (hashes && !wanted.includes("webtransport")) {
    throw new TypeError("serverCertificateHashes is for WebTransport");
  }
  return { filters, transports };
}

/** A message in the form in which it is sent. */
export function checkPublication(topic: string, payload: Payload, options: PublishOptions): Uint8Array {
  refuseUnknown(options, PUBLISH_OPTIONS);
  checkQos(options.qos);
  if (typeof topic !== "string" || topic === "") {
    throw new TypeError("a topic is a text");
  }
  if (options.key !== undefined && !/^[!-~]{1,255}$/.test(options.key)) {
    throw new TypeError("key is 1 to 255 visible characters");
  }
  if (typeof payload === "string") {
    return new TextEncoder().encode(payload);
  }
  if (payload instanceof Uint8Array) {
    return payload;
  }
  if (payload instanceof ArrayBuffer) {
    return new Uint8Array(payload);
  }
  throw new TypeError("a payload is a text or bytes");
}

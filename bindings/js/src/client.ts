/** The client: one subscription that goes on where it was cut off, and publications that are made once. */

import { openStream, type Carrier } from "./carrier.js";
import { ConnectionError, isUntrusted, PublishError, RequestError } from "./errors.js";
import { FrameError, parse, TooLargeError, type Frame } from "./frames.js";
import { Ledger } from "./ledger.js";
import { Mailbox } from "./mailbox.js";
import { Message } from "./message.js";
import { checkOptions, checkPublication, type Options, type Payload, type PublishOptions } from "./options.js";
import { base64, baseOf, Requests, silence, topicPath } from "./requests.js";
import { BACKOFF, Cut, delayMs, Pauses, unless, type Backoff } from "./signals.js";
import { Transport } from "./webtransport.js";

/** `connecting`: also while it waits for the next try. `closed`: for good. */
export type State = "connecting" | "open" | "closed";

/** Time that goodbyes may take. */
const CLOSE_MS = 2_000;

/** The state has changed. */
export class StateEvent extends Event {
  constructor(
    readonly state: State,
    /** The reason, where it is a trouble. */
    readonly error: Error | undefined,
    /** Time to the next try. */
    readonly retryMs: number,
  ) {
    super("state");
  }
}

type Listening = Parameters<EventTarget["addEventListener"]>[2];

export interface Client {
  /** `state`: it has changed. `gap`: the session was gone, and messages may be missing. */
  addEventListener(type: "state", listener: (event: StateEvent) => void, options?: Listening): void;
  addEventListener(type: "gap", listener: (event: Event) => void, options?: Listening): void;
  addEventListener(type: string, listener: Parameters<EventTarget["addEventListener"]>[1], options?: Listening): void;
}

export class Client extends EventTarget implements AsyncDisposable {
  readonly #options: Options;
  readonly #filters: readonly string[];
  readonly #backoff: Backoff;
  readonly #silenceMs: number;
  readonly #maximumMessageBytes: number;
  /** Whether everything goes over WebTransport, because requests cannot check the broker's certificate. */
  readonly #isPinned: boolean;
  /** Whether messages stay in the session until they are acknowledged. */
  readonly #isKept: boolean;
  readonly #requests: Requests;
  readonly #messages: Mailbox<Message>;
  readonly #ledger = new Ledger();
  readonly #pauses = new Pauses();
  readonly #closing = new AbortController();
  #state: State = "connecting";
  #session: string | undefined;
  /** The id up to which everything has come, or is done. */
  #after: number | undefined;
  #usesTransport: boolean;
  /** Whether WebTransport has worked. */
  #hadTransport = false;
  #transport: Transport | undefined;
  /** The connection under way. */
  #cut: Cut | undefined;
  /** Whether the next try is to be made at once. */
  #isUrgent = false;
  /** Whether a connection has stood. */
  #hasStood = false;
  /** Whether the session of before is gone, which sends nothing again. */
  #isGone = false;
  #heardAt = 0;
  #sending: Promise<void> | undefined;
  #closed: Promise<void> | undefined;

  /** Use `connect`. */
  constructor(address: string | URL, options: Options) {
    super();
    const base = baseOf(address);
    const { filters, transports } = checkOptions(base, options);
    this.#options = options;
    this.#filters = filters;
    this.#usesTransport = transports.includes("webtransport");
    this.#isPinned = !transports.includes("fetch");
    this.#session = options.session;
    this.#isKept = options.session !== undefined || filters.some((filter) => filter.startsWith("$share/"));
    this.#backoff = { ...BACKOFF, ...options.backoff };
    this.#silenceMs = options.silenceMs ?? 45_000;
    this.#maximumMessageBytes = options.maximumMessageBytes ?? 64 * 1024 * 1024;
    this.#messages = new Mailbox(options.maximumWaitingBytes ?? 4 * 1024 * 1024);
    this.#requests = new Requests(base, options, options.fetch ?? globalThis.fetch.bind(globalThis), this.#silenceMs);
  }

  get state(): State {
    return this.#state;
  }

  /** The session's name, as far as it is known. */
  get session(): string | undefined {
    return this.#session;
  }

  /** The transport of deliveries now. */
  get transport(): "webtransport" | "fetch" {
    return this.#transport ? "webtransport" : "fetch";
  }

  /** Messages as they come. Loops share them; the end of a loop ends nothing else. */
  get messages(): AsyncIterableIterator<Message> {
    return this.#messages;
  }

  /** Begins; returns when the subscription stands. */
  async start(): Promise<this> {
    const { signal } = this.#options;
    globalThis.addEventListener?.("online", this.#online);
    globalThis.document?.addEventListener("visibilitychange", this.#visible);
    if (this.#filters.length === 0 && this.#session === undefined && !this.#isPinned) {
      this.#say("open");
      return this;
    }
    const opened = new Promise<void>((resolve, reject) => {
      const settle = ({ state, error }: StateEvent): void => {
        if (state === "open") {
          resolve();
        } else if (state === "closed") {
          reject(error);
        }
      };
      this.addEventListener("state", settle);
    });
    void this.#run();
    try {
      await unless(signal, opened);
    } catch (error) {
      opened.catch(() => {});
      await this.close();
      throw error;
    }
    return this;
  }

  readonly #online = (): void => {
    this.#isUrgent = true;
    // The old network has taken its connections along, and they need not know it yet.
    this.#cut?.abort(new ConnectionError("the network has changed"));
    this.#pauses.wake();
  };

  readonly #visible = (): void => {
    // Timers of a hidden page hardly run, so a connection that died meanwhile was not noticed.
    const isStale = performance.now() - this.#heardAt > this.#silenceMs / 2;
    if (globalThis.document.visibilityState === "visible" && (this.#state !== "open" || isStale)) {
      this.#online();
    }
  };

  #say(state: State, error?: unknown, retryMs = 0): void {
    this.#state = state;
    this.dispatchEvent(new StateEvent(state, error as Error | undefined, retryMs));
  }

  async #run(): Promise<void> {
    for (let failures = 0; ; ) {
      const cut = (this.#cut = new Cut(this.#closing.signal));
      if (this.#isUrgent) {
        failures = 0;
      }
      this.#isUrgent = false;
      let trouble: unknown;
      try {
        await this.#connection(cut, () => (failures = 0));
        trouble = new ConnectionError("the subscription was ended");
      } catch (error) {
        trouble = error;
      }
      // Everything that this connection has left behind ends with it.
      cut.abort(trouble);
      cut.release();
      if (this.#closing.signal.aborted) {
        return;
      }
      if (isFinal(trouble) || (!this.#hasStood && isUntrusted(trouble))) {
        this.#end(trouble);
        return;
      }
      failures++;
      const askedMs = trouble instanceof RequestError ? trouble.retryAfterMs : 0;
      const waitMs = this.#isUrgent ? 0 : Math.max(delayMs(this.#backoff, failures), askedMs);
      this.#say("connecting", trouble, waitMs);
      if (!this.#isUrgent) {
        await this.#pauses.pause(waitMs, this.#closing.signal).catch(() => {});
      }
    }
  }

  /** One connection, from its beginning to its end in order. */
  async #connection(cut: Cut, heard: () => void): Promise<void> {
    const { signal } = cut;
    this.#ledger.begin();
    let carrier: Carrier | undefined;
    // While nothing is read, nothing is heard.
    let isReading = true;
    this.#heardAt = performance.now();
    // Turns are counted, not time: a program that stood still has not listened.
    let heardBefore = 0;
    let quietTurns = 0;
    const watchdog = setInterval(() => {
      quietTurns = isReading && this.#heardAt === heardBefore ? quietTurns + 1 : 0;
      heardBefore = this.#heardAt;
      if (quietTurns > 3) {
        cut.abort(silence(this.#silenceMs));
      }
    }, this.#silenceMs / 4);
    try {
      if (this.#hasStood && this.#isKept && !this.#isPinned) {
        await this.#checkSession(signal);
      }
      carrier = await this.#carrier(signal);
      this.#heardAt = performance.now();
      this.#begin(carrier);
      const isSilent = this.#filters.length === 0 && this.#session === undefined;
      for (;;) {
        isReading = !isSilent;
        const frame = await unless(signal, carrier.next());
        isReading = false;
        if (!frame) {
          return;
        }
        this.#heardAt = performance.now();
        heard();
        if (frame.length > 0) {
          this.#take(parse(frame));
        }
        if (this.#messages.isFull) {
          await unless(signal, this.#messages.room());
        }
      }
    } finally {
      clearInterval(watchdog);
      this.#transport = undefined;
      carrier?.close();
    }
  }

  #begin(carrier: Carrier): void {
    const { session } = carrier;
    const isOther = session !== undefined && this.#session !== undefined && session !== this.#session;
    // Without a name of its own, a subscription over WebTransport begins anew.
    const isLost = carrier instanceof Transport && this.#session === undefined;
    if (this.#hasStood && (isOther || isLost)) {
      this.#lose();
    }
    this.#session = session ?? this.#session;
    if (this.#options.session !== undefined && !this.#isPinned && !this.#isGone) {
      // The session sends again what was not read, after a restart by other ids: that would be there twice.
      this.#ledger.drop(this.#messages.discard(({ id }) => id !== 0).map(({ id }) => id));
    }
    this.#isGone = false;
    this.#hasStood = true;
    this.#say("open");
    this.#flush();
  }

  /** The session is gone, and what was in it. */
  #lose(): void {
    this.#session = this.#options.session;
    this.#after = undefined;
    this.#isGone = true;
    this.#ledger.clear();
    this.dispatchEvent(new Event("gap"));
  }

  /** Looks whether the session is still there: ids of another one by the same name would mean other messages. */
  async #checkSession(signal: AbortSignal): Promise<void> {
    try {
      await this.#requests.ask("GET", `v1/sessions/${this.#session}`, { signal });
    } catch (error) {
      if (!(error instanceof RequestError && error.status === 404)) {
        throw error;
      }
      this.#lose();
    }
  }

  #target(): string {
    const { qos = 1, retained = true } = this.#options;
    const query = [`qos=${qos}`, ...this.#filters.map((filter) => `filter=${encodeURIComponent(filter)}`)];
    if (!retained) {
      query.push("retained=no");
    }
    if (this.#session !== undefined) {
      query.push(`session=${this.#session}`);
      if (this.#after !== undefined) {
        query.push(`after=${this.#after}`);
      }
    }
    return `v1/topics?${query.join("&")}`;
  }

  async #carrier(signal: AbortSignal): Promise<Carrier> {
    const target = this.#target();
    let refusal: unknown;
    if (this.#usesTransport) {
      try {
        const url = new URL(target, this.#requests.base);
        const token = await this.#requests.token(signal);
        if (token !== undefined) {
          url.search += `&access_token=${encodeURIComponent(token)}`;
        }
        const hashes = this.#options.serverCertificateHashes;
        const datagram = (bytes: Uint8Array): void => this.#datagram(bytes);
        this.#transport = await Transport.open(url, hashes, signal, this.#maximumMessageBytes, datagram);
        this.#hadTransport = true;
        return this.#transport;
      } catch (error) {
        if (signal.aborted || this.#isPinned) {
          // It may have been refused because of its token: nobody says.
          this.#requests.forgetToken();
          throw error;
        }
        refusal = error;
      }
    }
    const stream = await openStream(this.#requests, target, signal, this.#maximumMessageBytes);
    if (refusal && !this.#hadTransport) {
      // The broker is there, and WebTransport is not: nothing is gained by trying again.
      this.#usesTransport = false;
    }
    return stream;
  }

  #datagram(bytes: Uint8Array): void {
    this.#heardAt = performance.now();
    if (this.#messages.isFull) {
      return;
    }
    try {
      this.#take(parse(bytes));
    } catch {
      // It says nothing about the stream, which goes on.
    }
  }

  #take(frame: Frame): void {
    if (frame.id === 0 || !this.#isKept) {
      this.#after = frame.id || this.#after;
      this.#messages.put(new Message(frame, () => Promise.resolve(true)));
      return;
    }
    const entry = this.#ledger.receive(frame.id, frame.redelivered);
    if (entry) {
      const acknowledge = (): Promise<boolean> => {
        const fate = this.#ledger.acknowledge(entry);
        this.#flush();
        return fate;
      };
      this.#messages.put(new Message(frame, acknowledge));
    } else {
      // The one that has come before may be done.
      this.#flush();
    }
  }

  /** Sends what is acknowledged. */
  #flush(): void {
    if (this.#state === "open" && this.#isKept) {
      this.#sending ??= this.#sendAcknowledgements();
    }
  }

  async #sendAcknowledgements(): Promise<void> {
    // Those of one turn go together.
    await Promise.resolve();
    try {
      for (let failures = 0; this.#state === "open"; ) {
        if (this.#isPinned) {
          const upTo = this.#ledger.takeDoneUpTo();
          if (upTo === undefined) {
            return;
          }
          this.#after = upTo;
          // One that is lost with the connection is told with the next one.
          await this.#transport?.acknowledge(upTo).catch(() => {});
          continue;
        }
        const batch = this.#ledger.batch();
        if (batch.length === 0) {
          return;
        }
        try {
          await this.#requests.ask("POST", `v1/sessions/${this.#session}/ack`, {
            headers: new Headers({ "Content-Type": "application/json" }),
            body: JSON.stringify({ ids: batch.map((entry) => entry.id) }),
            signal: this.#closing.signal,
          });
          this.#ledger.settle(batch, true);
          failures = 0;
        } catch (error) {
          if (isFinal(error)) {
            this.#ledger.settle(batch, false);
            continue;
          }
          this.#ledger.putBack(batch);
          failures++;
          await this.#pauses.pause(delayMs(this.#backoff, failures), this.#closing.signal).catch(() => {});
        }
      }
    } finally {
      // In the turn of the last look: an acknowledgement that comes later begins again.
      this.#sending = undefined;
    }
  }

  /**
   * Publishes a message. It is tried again over lost connections, and published once all the same. Rejects with a
   * `PublishError` where the broker refuses it, or where it is not known whether it was published.
   */
  async publish(topic: string, payload: Payload, options: PublishOptions = {}): Promise<void> {
    const body = checkPublication(topic, payload, options);
    if (this.#closing.signal.aborted) {
      throw new Error("the client is closed");
    }
    options.signal?.throwIfAborted();
    const cut = new Cut(options.signal, this.#closing.signal);
    try {
      if (this.#isPinned) {
        await this.#publishOverTransport(topic, body, options, cut.signal);
      } else {
        await this.#publishOnce(topic, body, options, cut.signal);
      }
    } catch (error) {
      if (options.signal?.aborted) {
        throw options.signal.reason;
      }
      if (this.#closing.signal.aborted) {
        throw PublishError.unknown("the client was closed", error);
      }
      throw error;
    } finally {
      cut.release();
    }
  }

  async #publishOnce(topic: string, body: Uint8Array, options: PublishOptions, signal: AbortSignal): Promise<void> {
    const headers = fieldsOf(options);
    const path = topicPath(topic);
    const retryForMs = this.#options.retryForMs ?? 3_600_000;
    const begun = performance.now();
    for (let failures = 1; ; failures++) {
      try {
        return await this.#requests.ask("POST", path, { headers, body, signal });
      } catch (error) {
        if (signal.aborted) {
          throw error;
        }
        const isLate = performance.now() - begun > retryForMs;
        if (error instanceof RequestError) {
          if (isLate || !mayPass(error)) {
            throw PublishError.from(error);
          }
        } else if (!(error instanceof ConnectionError) || isUntrusted(error)) {
          throw error;
        } else if (isLate) {
          throw PublishError.unknown(`no answer in ${retryForMs / 1000} s`, error);
        }
        const askedMs = error instanceof RequestError ? error.retryAfterMs : 0;
        await this.#pauses.pause(Math.max(delayMs(this.#backoff, failures), askedMs), signal);
      }
    }
  }

  /** Frames have no keys. So a message whose answer is lost is not tried again. */
  async #publishOverTransport(
    topic: string,
    payload: Uint8Array,
    { qos = 1, retain = false, signal: _, key, ...properties }: PublishOptions,
    signal: AbortSignal,
  ): Promise<void> {
    if (key !== undefined) {
      throw new TypeError("WebTransport has no keys of publications");
    }
    while (!this.#transport) {
      await unless(signal, new Promise((resolve) => this.addEventListener("state", resolve, { once: true })));
    }
    let status: number;
    try {
      status = await unless(signal, this.#transport.publish({ ...properties, topic, payload, qos, retain }));
    } catch (error) {
      throw error instanceof ConnectionError ? PublishError.unknown("the connection was lost", error) : error;
    }
    if (status >= 300) {
      throw new PublishError(status, null);
    }
  }

  #end(error?: unknown): void {
    globalThis.removeEventListener?.("online", this.#online);
    globalThis.document?.removeEventListener("visibilitychange", this.#visible);
    this.#messages.end(error);
    this.#closing.abort(new ConnectionError("the client is closed"));
    if (this.#state !== "closed") {
      this.#say("closed", error);
    }
    this.#ledger.clear();
  }

  /** Ends. Acknowledgements that were given are sent first; a session with a name stays for the next time. */
  close(): Promise<void> {
    return (this.#closed ??= this.#close());
  }

  async #close(): Promise<void> {
    const goodbye = AbortSignal.timeout(CLOSE_MS);
    if (this.#sending) {
      await unless(goodbye, this.#sending).catch(() => {});
    }
    this.#end();
    if (this.#session?.startsWith("~") && !this.#isPinned) {
      // It would be kept for a while, and end by itself.
      await this.#requests.ask("DELETE", `v1/sessions/${this.#session}`, { signal: goodbye }).catch(() => {});
    }
  }

  /** For `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

/** Whether another try would have the same answer. */
function isFinal(error: unknown): boolean {
  if (error instanceof RequestError) {
    return error.status < 500 && ![408, 409, 425, 429].includes(error.status);
  }
  return error instanceof TooLargeError || !(error instanceof ConnectionError || error instanceof FrameError);
}

/** Whether a message that was refused is accepted soon: the answer is of a proxy, a broker that stops, or an earlier try. */
function mayPass({ status, kind, problem }: RequestError): boolean {
  return (
    [408, 425, 502, 504].includes(status) ||
    (status === 409 && kind === "key-in-use") ||
    (status === 503 && (kind === "stopping" || problem === null))
  );
}

function fieldsOf(options: PublishOptions): Headers {
  const headers = new Headers({ "Sterna-QoS": String(options.qos ?? 1), "Idempotency-Key": options.key ?? newKey() });
  const set = (name: string, value: string | undefined): void => {
    if (value !== undefined) {
      headers.set(name, value);
    }
  };
  set("Sterna-Retain", options.retain ? "?1" : undefined);
  set("Sterna-Payload-Format", options.isText ? "utf-8" : undefined);
  set("Sterna-Expiry", options.expiryS?.toString());
  set("Content-Type", options.contentType);
  set("Sterna-Response-Topic", options.responseTopic && encodeURIComponent(options.responseTopic));
  set("Sterna-Correlation-Data", options.correlationData && base64(options.correlationData));
  for (const [name, value] of options.userProperties ?? []) {
    headers.append("Sterna-User-Property", `${encodeURIComponent(name)}=${encodeURIComponent(value)}`);
  }
  return headers;
}

/** A key that no other publication has. */
function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Messages over WebTransport: deliveries on a stream and in datagrams, publications and acknowledgements on another. */

import { asLost, framesOf, type Carrier } from "./carrier.js";
import { ConnectionError } from "./errors.js";
import { acknowledgement, FrameError, parseAnswer, publication, type Frame } from "./frames.js";
import type { CertificateHash } from "./options.js";
import { unless } from "./signals.js";

/** Limit of opening: where UDP is blocked, nothing ever comes. */
const OPEN_MS = 5_000;

export class Transport implements Carrier {
  readonly #transport: WebTransport;
  readonly #maximumBytes: number;
  /** Statuses that are waited for, by the ids of their frames. */
  readonly #asked = new Map<number, { resolve: (status: number) => void; reject: (error: unknown) => void }>();
  #lastId = 0;
  #deliveries: ReturnType<typeof framesOf> | undefined;
  #writer: Promise<WritableStreamDefaultWriter<Uint8Array>> | undefined;

  private constructor(transport: WebTransport, maximumBytes: number) {
    this.#transport = transport;
    this.#maximumBytes = maximumBytes;
    const lose = (): void => this.#lose(new ConnectionError("the connection was lost"));
    transport.closed.then(lose, lose);
  }

  static async open(
    url: URL,
    hashes: readonly CertificateHash[] | undefined,
    signal: AbortSignal,
    maximumBytes: number,
    datagram: (bytes: Uint8Array) => void,
  ): Promise<Transport> {
    const transport = new WebTransport(url, hashes ? { serverCertificateHashes: [...hashes] } : {});
    const opened = new Transport(transport, maximumBytes);
    try {
      await unless(AbortSignal.timeout(OPEN_MS), unless(signal, transport.ready));
    } catch (error) {
      opened.close();
      throw signal.aborted ? error : asLost(error);
    }
    void opened.#readDatagrams(datagram);
    return opened;
  }

  async #readDatagrams(datagram: (bytes: Uint8Array) => void): Promise<void> {
    const reader = this.#transport.datagrams.readable.getReader() as ReadableStreamDefaultReader<Uint8Array>;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) {
          return;
        }
        datagram(value);
      }
    } catch {
      // The session has ended, and the reader of deliveries says so.
    }
  }

  async next(): Promise<Uint8Array | undefined> {
    try {
      if (!this.#deliveries) {
        const incoming = this.#transport.incomingUnidirectionalStreams.getReader();
        const { done, value } = await incoming.read();
        incoming.releaseLock();
        if (done) {
          return undefined;
        }
        this.#deliveries = framesOf(value as ReadableStream<Uint8Array>, this.#maximumBytes);
      }
      return await this.#deliveries.next();
    } catch (error) {
      if (error instanceof FrameError) {
        throw asLost(error);
      }
      // A session that ends in order takes its streams along.
      return this.#transport.closed.then(
        () => undefined,
        () => Promise.reject(asLost(error)),
      );
    }
  }

  close(): void {
    this.#deliveries?.cancel();
    try {
      this.#transport.close();
    } catch {
      // It was closed already.
    }
  }

  /** Publishes a message; returns the status of the answer. */
  publish(message: Omit<Frame, "redelivered" | "id">): Promise<number> {
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      this.#asked.set(id, { resolve, reject });
      this.#write(publication({ ...message, id })).catch((error: unknown) => {
        this.#asked.delete(id);
        reject(asLost(error));
      });
    });
  }

  /** Acknowledges all messages up to an id. There is no answer to it. */
  acknowledge(id: number): Promise<void> {
    return this.#write(acknowledgement(id));
  }

  async #write(bytes: Uint8Array): Promise<void> {
    this.#writer ??= this.#openExchange();
    const writer = await this.#writer;
    await writer.write(bytes);
  }

  async #openExchange(): Promise<WritableStreamDefaultWriter<Uint8Array>> {
    const { readable, writable } = await this.#transport.createBidirectionalStream();
    void this.#readAnswers(framesOf(readable as ReadableStream<Uint8Array>, this.#maximumBytes));
    return (writable as WritableStream<Uint8Array>).getWriter();
  }

  async #readAnswers(answers: ReturnType<typeof framesOf>): Promise<void> {
    try {
      for (let frame; (frame = await answers.next()); ) {
        const { id, status } = parseAnswer(frame);
        this.#asked.get(id)?.resolve(status);
        this.#asked.delete(id);
      }
      throw new ConnectionError("the stream was ended");
    } catch (error) {
      this.#lose(asLost(error));
    }
  }

  #lose(error: unknown): void {
    for (const { reject } of this.#asked.values()) {
      reject(error);
    }
    this.#asked.clear();
  }
}

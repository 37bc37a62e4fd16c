/** Frames of `application/vnd.sterna.stream` and of WebTransport: the binary form of messages. */

export const MEDIA_TYPE = "application/vnd.sterna.stream";

/** Flags of the frame that acknowledges everything up to its id. */
const ACKNOWLEDGES = 0x80;

/** A stream that does not keep to the form; it is read again from a new connection. */
export class FrameError extends Error {
  override name = "FrameError";
}

/** A message that is larger than the client takes. It would come again and again, so the client ends. */
export class TooLargeError extends FrameError {
  override name = "TooLargeError";
}

/** The properties of a message, as MQTT 5.0 has them. */
export interface Properties {
  /** Whether the publisher says that the payload is text. */
  isText?: boolean;
  /** Time that the message is still of use. */
  expiryS?: number;
  contentType?: string;
  responseTopic?: string;
  correlationData?: Uint8Array;
  userProperties?: [name: string, value: string][];
}

export interface Frame extends Properties {
  /** 0 for none. */
  id: number;
  qos: 0 | 1 | 2;
  retain: boolean;
  redelivered: boolean;
  topic: string;
  payload: Uint8Array;
}

const encoder = new TextEncoder();
// A byte order mark is a part of the text, as every other character.
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Reads the fields of a frame, one behind the other. */
class Cursor {
  #at = 0;

  constructor(readonly bytes: Uint8Array) {}

  get isAtEnd(): boolean {
    return this.#at === this.bytes.length;
  }

  take(count: number): Uint8Array {
    const end = this.#at + count;
    if (end > this.bytes.length) {
      throw new FrameError("a field is longer than its frame");
    }
    const taken = this.bytes.subarray(this.#at, end);
    this.#at = end;
    return taken;
  }

  /** An integer of a fixed number of bytes. */
  number(count: number): number {
    return this.take(count).reduce((sum, byte) => sum * 256 + byte, 0);
  }

  /** An integer of variable length (RFC 9000, section 16). */
  varint(): number {
    const first = this.number(1);
    const rest = (1 << (first >> 6)) - 1;
    const value = (first & 0x3f) * 256 ** rest + this.number(rest);
    if (value > Number.MAX_SAFE_INTEGER) {
      throw new FrameError("a number is too large");
    }
    return value;
  }

  /** Bytes behind a length of two bytes, as MQTT has them. */
  binary(): Uint8Array {
    return this.take(this.number(2));
  }

  text(bytes: Uint8Array = this.binary()): string {
    try {
      return decoder.decode(bytes);
    } catch {
      throw new FrameError("a text is not UTF-8");
    }
  }

  rest(): Uint8Array {
    return this.take(this.bytes.length - this.#at);
  }
}

/** The frame in these bytes, which have no Length. */
export function parse(bytes: Uint8Array): Frame {
  const cursor = new Cursor(bytes);
  const id = cursor.varint();
  const flags = cursor.number(1);
  if (flags > 15 || (flags & 3) === 3) {
    throw new FrameError(`flags ${flags} are unknown`);
  }
  const topic = cursor.text(cursor.take(cursor.varint()));
  const properties = parseProperties(cursor.take(cursor.varint()));
  return {
    id,
    qos: (flags & 3) as 0 | 1 | 2,
    retain: (flags & 4) !== 0,
    redelivered: (flags & 8) !== 0,
    topic,
    ...properties,
    // A copy: a view would keep all of what came together with it.
    payload: cursor.rest().slice(),
  };
}

function parseProperties(bytes: Uint8Array): Properties {
  const cursor = new Cursor(bytes);
  const found: Properties = {};
  while (!cursor.isAtEnd) {
    const identifier = cursor.number(1);
    switch (identifier) {
      case 1:
        found.isText = cursor.number(1) === 1;
        break;
      case 2:
        found.expiryS = cursor.number(4);
        break;
      case 3:
        found.contentType = cursor.text();
        break;
      case 8:
        found.responseTopic = cursor.text();
        break;
      case 9:
        found.correlationData = cursor.binary().slice();
        break;
      case 38:
        (found.userProperties ??= []).push([cursor.text(), cursor.text()]);
        break;
      default:
        throw new FrameError(`property ${identifier} is unknown`);
    }
  }
  return found;
}

/** The answer to a frame of the client: its id, and the status that `POST` would have. */
export function parseAnswer(bytes: Uint8Array): { id: number; status: number } {
  const cursor = new Cursor(bytes);
  return { id: cursor.varint(), status: cursor.varint() };
}

/** Cuts a stream into its frames, wherever the network has cut it. */
export class FrameReader {
  #chunks: Uint8Array[] = [];
  #bytes = 0;
  /** Below this, there is no whole frame, and joining the chunks would be in vain. */
  #wanted = 1;

  constructor(readonly maximumBytes: number) {}

  push(chunk: Uint8Array): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
  }

  /** The next frame without its Length, empty for a heartbeat; `undefined` until more has come. */
  next(): Uint8Array | undefined {
    if (this.#bytes < this.#wanted) {
      return undefined;
    }
    const held = this.#chunks.length === 1 ? this.#chunks[0]! : concatenate(this.#chunks);
    this.#chunks = [held];
    const size = 1 << (held[0]! >> 6);
    if (held.length < size) {
      this.#wanted = size;
      return undefined;
    }
    const length = new Cursor(held).varint();
    if (length > this.maximumBytes) {
      throw new TooLargeError(`a message of ${length} bytes; maximumMessageBytes is ${this.maximumBytes}`);
    }
    const end = size + length;
    if (held.length < end) {
      this.#wanted = end;
      return undefined;
    }
    this.#wanted = 1;
    this.#bytes -= end;
    this.#chunks = this.#bytes > 0 ? [held.subarray(end)] : [];
    return held.subarray(size, end);
  }
}

export function concatenate(pieces: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** The bytes of a number, the last ones of them. */
function bytesOf(value: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => Math.floor(value / 256 ** (count - 1 - index)) % 256);
}

function varint(value: number): number[] {
  const power = value < 2 ** 6 ? 0 : value < 2 ** 14 ? 1 : value < 2 ** 30 ? 2 : 3;
  const bytes = bytesOf(value, 1 << power);
  bytes[0]! |= power << 6;
  return bytes;
}

function binary(bytes: Uint8Array): number[] {
  if (bytes.length > 0xffff) {
    throw new RangeError("a property has more than 65,535 bytes");
  }
  return [...bytesOf(bytes.length, 2), ...bytes];
}

function text(value: string): number[] {
  return binary(encoder.encode(value));
}

/** The frame that publishes a message, with its Length. */
export function publication(frame: Omit<Frame, "redelivered">): Uint8Array {
  const properties = [
    ...(frame.isText ? [1, 1] : []),
    ...(frame.expiryS === undefined ? [] : [2, ...bytesOf(frame.expiryS, 4)]),
    ...(frame.contentType === undefined ? [] : [3, ...text(frame.contentType)]),
    ...(frame.responseTopic === undefined ? [] : [8, ...text(frame.responseTopic)]),
    ...(frame.correlationData === undefined ? [] : [9, ...binary(frame.correlationData)]),
    ...(frame.userProperties ?? []).flatMap(([name, value]) => [38, ...text(name), ...text(value)]),
  ];
  const topic = encoder.encode(frame.topic);
  const head = [...varint(frame.id), frame.qos | (frame.retain ? 4 : 0), ...varint(topic.length), ...topic];
  return withLength([...head, ...varint(properties.length), ...properties], frame.payload);
}

/** The frame that acknowledges all messages up to an id, with its Length. */
export function acknowledgement(id: number): Uint8Array {
  return withLength([...varint(id), ACKNOWLEDGES], new Uint8Array(0));
}

function withLength(head: number[], payload: Uint8Array): Uint8Array {
  return concatenate([Uint8Array.from([...varint(head.length + payload.length), ...head]), payload]);
}

// A small broker for the tests: the parts of docs/http.md that the client uses, with one topic space and no rules. Tests take
// a request away from it with `before`, cut its connections, and have it begin anew as after a kill.

import { createServer } from "node:http";

/** Ids that a broker has reserved are behind it after a restart. */
const RESERVED_IDS = 16_384;

export function varint(value) {
  const power = value < 2 ** 6 ? 0 : value < 2 ** 14 ? 1 : value < 2 ** 30 ? 2 : 3;
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(value) | (BigInt(power) << BigInt(8 * (1 << power) - 2)));
  return bytes.subarray(8 - (1 << power));
}

/** A frame of a delivery, with its Length. */
export function frame({ id = 0, qos = 1, retain = false, redelivered = false, topic = "t", properties = [], payload = "" }) {
  const name = Buffer.from(topic);
  const body = Buffer.concat([
    varint(id), Buffer.from([qos | (retain ? 4 : 0) | (redelivered ? 8 : 0)]), varint(name.length), name, varint(properties.length),
    Buffer.from(properties), Buffer.from(payload),
  ]);
  return Buffer.concat([varint(body.length), body]);
}

export const HEARTBEAT = Buffer.from([0]);

export function problem(response, status, kind, fields = {}) {
  response.writeHead(status, { "Content-Type": "application/problem+json", ...fields });
  response.end(JSON.stringify({ type: `urn:sterna:problem:${kind}`, title: kind, status, detail: `it is ${kind}` }));
}

async function contentOf(request) {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  return Buffer.concat(pieces);
}

export class FakeBroker {
  #server;
  /** By name: what waits, what was sent and not acknowledged by id, the response. */
  sessions = new Map();
  keys = new Map();
  /** Everything that was published, as often as it was. */
  published = [];
  requests = [];
  /** Takes a request away: returns true where it has. */
  before = () => false;
  #names = 0;

  constructor(create = createServer) {
    this.#server = create((request, response) => {
      this.#answer(request, response).catch(() => response.destroy());
    });
  }

  async start() {
    await new Promise((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${this.#server.address().port}`;
    return this;
  }

  async stop() {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Breaks all connections off. */
  cut() {
    for (const session of this.sessions.values()) session.response = undefined;
    this.#server.closeAllConnections();
  }

  /** As a kill and a start: durable sessions stay with what is not acknowledged, which comes again with other ids. */
  restart() {
    this.cut();
    for (const [name, session] of this.sessions) {
      if (name.startsWith("~")) {
        this.sessions.delete(name);
        continue;
      }
      const again = [...session.sent.values()].map((message) => ({ ...message, redelivered: true }));
      session.waiting = [...again, ...session.waiting];
      session.sent.clear();
      session.lastId += RESERVED_IDS;
    }
  }

  publish(message) {
    this.published.push(message);
    for (const session of this.sessions.values()) {
      session.waiting.push(message);
      this.#pump(session);
    }
  }

  #pump(session) {
    while (session.response && session.waiting.length) {
      const message = session.waiting.shift();
      const id = ++session.lastId;
      session.sent.set(id, message);
      session.response.write(frame({ ...message, id }));
    }
  }

  async #answer(request, response) {
    const url = new URL(request.url, "http://broker");
    const content = await contentOf(request);
    const asked = { method: request.method, path: url.pathname, query: url.searchParams, headers: request.headers, content };
    this.requests.push(asked);
    if (await this.before(asked, response, request)) return;
    const [, , place, ...rest] = url.pathname.split("/");
    if (place === "sessions") {
      this.#session(asked, rest, response);
    } else if (asked.method === "POST") {
      this.#post(asked, decodeURIComponent(rest.join("/")), response);
    } else {
      this.#subscribe(asked, response);
    }
  }

  #post({ headers, content }, topic, response) {
    const key = headers["idempotency-key"];
    const message = { topic, payload: content, qos: Number(headers["sterna-qos"]), retain: headers["sterna-retain"] === "?1", headers };
    const isReplay = key !== undefined && this.keys.has(key);
    if (!isReplay) {
      this.keys.set(key, true);
      this.publish(message);
    }
    response.writeHead(204, isReplay ? { "Idempotent-Replayed": "?1" } : {}).end();
  }

  #subscribe({ query }, response) {
    let name = query.get("session");
    if (name === null || (name.startsWith("~") && !this.sessions.has(name))) name = `~${++this.#names}`;
    const session = this.sessions.get(name) ?? { waiting: [], sent: new Map(), lastId: 0, response: undefined };
    this.sessions.set(name, session);
    session.response?.end();
    const after = Number(query.get("after") ?? 0);
    for (const id of session.sent.keys()) {
      if (id <= after) session.sent.delete(id);
    }
    response.writeHead(200, { "Content-Type": "application/vnd.sterna.stream", "Sterna-Session": name });
    response.flushHeaders();
    session.response = response;
    response.on("close", () => {
      if (session.response === response) session.response = undefined;
    });
    for (const [id, message] of session.sent) response.write(frame({ ...message, id, redelivered: true }));
    this.#pump(session);
  }

  #session({ method, content }, [name, verb], response) {
    const session = this.sessions.get(name);
    if (!session) return problem(response, 404, "no-session");
    if (verb === "ack") {
      const { ids } = JSON.parse(content);
      if (ids.some((id) => id > session.lastId)) return problem(response, 400, "invalid-content");
      for (const id of ids) session.sent.delete(id);
    } else if (method === "DELETE") {
      session.response?.end();
      this.sessions.delete(name);
    }
    response.writeHead(204).end();
  }
}

/** The first event of a state. */
export function state(client, wanted) {
  if (client.state === wanted) return Promise.resolve();
  return new Promise((resolve) => {
    client.addEventListener("state", function heard(event) {
      if (event.state !== wanted) return;
      client.removeEventListener("state", heard);
      resolve(event);
    });
  });
}

/** So many messages. */
export async function take(client, count) {
  const taken = [];
  while (taken.length < count) {
    const { done, value } = await client.messages.next();
    if (done) throw new Error(`the messages end after ${taken.length}`);
    taken.push(value);
  }
  return taken;
}

/** Options that make tests quick. */
export const QUICK = { backoff: { firstMs: 1, longestMs: 20 } };

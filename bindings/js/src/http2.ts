/** `fetch` over HTTP/2 by Node's own `node:http2`: one connection for all requests, and authorities of one's own. */

import * as http2 from "node:http2";
import { Readable } from "node:stream";

/** As of `tls.connect`; no field is needed. */
export interface Http2Options {
  /** Certificates of authorities, in PEM, in place of those of the system. */
  ca?: string | Uint8Array | (string | Uint8Array)[];
  /** A certificate of the client, in PEM, and its key. */
  cert?: string | Uint8Array;
  key?: string | Uint8Array;
  servername?: string;
  rejectUnauthorized?: boolean;
}

export interface Http2Fetch {
  (address: URL | string | Request, init?: RequestInit): Promise<Response>;
  /** Closes the connections. */
  close(): void;
}

/** Fields of HTTP/1.1 that HTTP/2 forbids. */
const FORBIDDEN = new Set(["connection", "host", "keep-alive", "transfer-encoding", "upgrade"]);
const WITHOUT_CONTENT = new Set([204, 205, 304]);

/** Makes a `fetch` for the option of that name. */
export function http2Fetch(options: Http2Options = {}): Http2Fetch {
  const connections = new Map<string, { session: http2.ClientHttp2Session; requests: number }>();

  function connection(origin: string): { session: http2.ClientHttp2Session; requests: number } {
    const known = connections.get(origin);
    if (known && !known.session.closed && !known.session.destroyed) {
      return known;
    }
    const session = http2.connect(origin, options as http2.SecureClientSessionOptions);
    const made = { session, requests: 0 };
    const forget = (): void => {
      if (connections.get(origin) === made) {
        connections.delete(origin);
      }
    };
    // Each request on it has the error, too.
    session.on("error", forget).on("close", forget).on("goaway", forget);
    connections.set(origin, made);
    return made;
  }

  function fetch(address: URL | string | Request, init: RequestInit = {}): Promise<Response> {
    if (address instanceof Request) {
      throw new TypeError("an address, not a Request");
    }
    const url = new URL(address);
    const { method = "GET", signal, body } = init;
    const headers: http2.OutgoingHttpHeaders = { ":method": method, ":path": url.pathname + url.search };
    new Headers(init.headers).forEach((value, name) => {
      if (!FORBIDDEN.has(name)) {
        headers[name] = value;
      }
    });
    if (body !== undefined && body !== null && typeof body !== "string" && !(body instanceof Uint8Array)) {
      throw new TypeError("a content is a text or bytes");
    }
    return new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const place = connection(url.origin);
      const stream = place.session.request(headers, { endStream: !body });
      // An idle connection must not keep a program from ending.
      place.requests++;
      place.session.ref();
      const abort = (): void => {
        stream.close(http2.constants.NGHTTP2_CANCEL);
        stream.destroy(signal?.reason instanceof Error ? signal.reason : new Error("aborted"));
        // A connection on which nothing is heard is of no use for the next request either.
        if (signal?.reason instanceof Error && signal.reason.name === "ConnectionError") {
          place.session.destroy();
        }
      };
      signal?.addEventListener("abort", abort);
      stream.on("error", reject);
      stream.on("close", () => {
        signal?.removeEventListener("abort", abort);
        if (--place.requests === 0) {
          place.session.unref();
        }
        reject(new Error("the stream was closed"));
      });
      stream.on("response", (fields) => {
        const status = fields[":status"] ?? 0;
        const answer = new Headers();
        for (const [name, value] of Object.entries(fields)) {
          if (!name.startsWith(":") && value !== undefined) {
            answer.set(name, String(value));
          }
        }
        if (WITHOUT_CONTENT.has(status) || method === "HEAD") {
          stream.resume();
          resolve(new Response(null, { status, headers: answer }));
        } else {
          resolve(new Response(Readable.toWeb(stream) as unknown as BodyInit, { status, headers: answer }));
        }
      });
      stream.end(body ?? undefined);
    });
  }

  return Object.assign(fetch, {
    close(): void {
      for (const { session } of connections.values()) {
        session.close();
      }
    },
  });
}

/** Requests of HTTP: the address, who asks, and the answer or the reason why there is none. */

import { ConnectionError, RequestError } from "./errors.js";
import { Cut, unless } from "./signals.js";

/** A token, or a function that gets a fresh one. */
export type Token = string | (() => string | Promise<string>);

export interface Identity {
  token?: Token;
  user?: string;
  password?: string;
  /** As of `fetch`: whether the browser adds its certificate and cookies. */
  credentials?: "omit" | "same-origin" | "include";
}

export interface Asked {
  headers?: Headers;
  body?: Uint8Array | string;
  signal?: AbortSignal | undefined;
}

/** The address of everything below the broker's own. */
export function baseOf(address: string | URL): URL {
  const base = new URL(address);
  if (base.protocol !== "https:" && base.protocol !== "http:") {
    throw new TypeError("the address does not begin with https:// or http://");
  }
  if (base.username || base.password || base.search || base.hash) {
    throw new TypeError("the address has a user, a query or a fragment");
  }
  if (!base.pathname.endsWith("/")) {
    base.pathname += "/";
  }
  return base;
}

/** The path of a topic. Clients of HTTP resolve levels `.` and `..` unless the slashes beside them are encoded. */
export function topicPath(topic: string): string {
  const levels = topic.split("/");
  const isPlain = !levels.includes(".") && !levels.includes("..");
  return `v1/topics/${isPlain ? levels.map(encodeURIComponent).join("/") : encodeURIComponent(topic)}`;
}

export class Requests {
  /** The token that was got last, and whether another one is on its way. */
  #token: Promise<string> | undefined;

  constructor(
    readonly base: URL,
    readonly identity: Identity,
    readonly fetch: typeof globalThis.fetch,
    /** Time without a sign of life after which a request is given up. */
    readonly silenceMs: number,
  ) {}

  /** Forgets the token, so that the next request gets a fresh one. */
  forgetToken(): void {
    this.#token = undefined;
  }

  async token(signal?: AbortSignal): Promise<string | undefined> {
    const { token } = this.identity;
    if (typeof token !== "function") {
      return token;
    }
    // An application's function may throw at once, or fail later: both are a try that is made again.
    const got = (this.#token ??= (async () => token())());
    try {
      return await unless(signal, got);
    } catch (error) {
      if (this.#token === got && !signal?.aborted) {
        this.#token = undefined;
      }
      throw signal?.aborted ? error : new ConnectionError("the function `token` has failed", { cause: error });
    }
  }

  async #authorization(signal: AbortSignal | undefined): Promise<string | undefined> {
    const { user, password } = this.identity;
    if (user !== undefined) {
      const bytes = new TextEncoder().encode(`${user}:${password ?? ""}`);
      return `Basic ${base64(bytes)}`;
    }
    const token = await this.token(signal);
    return token === undefined ? undefined : `Bearer ${token}`;
  }

  /** Asks, and returns the answer whose head has come. A token that is refused is replaced once. */
  async open(method: string, path: string, asked: Asked): Promise<Response> {
    for (let isSecond = false; ; isSecond = true) {
      const headers = new Headers(asked.headers);
      const authorization = await this.#authorization(asked.signal);
      const token = this.#token;
      if (authorization !== undefined) {
        headers.set("Authorization", authorization);
      }
      let response: Response;
      try {
        response = await unless(
          asked.signal,
          this.fetch(new URL(path, this.base), {
            method,
            headers,
            cache: "no-store",
            credentials: this.identity.credentials ?? "omit",
            ...(asked.body === undefined ? {} : { body: asked.body as BodyInit }),
            ...(asked.signal ? { signal: asked.signal } : {}),
          }),
        );
      } catch (error) {
        if (asked.signal?.aborted) {
          throw asked.signal.reason;
        }
        // Node's `fetch` has the reason one level below.
        const cause = ((error as Error).cause ?? error) as Error;
        throw new ConnectionError(`the broker does not answer: ${cause.message}`, { cause });
      }
      if (response.ok) {
        return response;
      }
      const refusal = await unless(asked.signal, RequestError.of(response));
      if (refusal.status !== 401 || isSecond || typeof this.identity.token !== "function") {
        throw refusal;
      }
      // Another request may have replaced it already.
      if (this.#token === token) {
        this.forgetToken();
      }
    }
  }

  /** Asks, and waits for the end of the answer, which has no content. */
  async ask(method: string, path: string, asked: Asked): Promise<void> {
    const cut = new Cut(asked.signal);
    const watchdog = setTimeout(() => cut.abort(silence(this.silenceMs)), this.silenceMs);
    try {
      const response = await this.open(method, path, { ...asked, signal: cut.signal });
      // Unread answers keep their connections from being used again.
      await response.body?.cancel();
    } finally {
      clearTimeout(watchdog);
      cut.release();
    }
  }
}

export function silence(ms: number): ConnectionError {
  return new ConnectionError(`nothing was heard for ${ms / 1000} s`);
}

export function base64(bytes: Uint8Array): string {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

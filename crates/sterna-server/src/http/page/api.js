// The broker's HTTP interfaces as the page uses them: requests, problems, and attempts that are made again.

const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15_000;
// A request that was refused with one of these is refused again.
const FINAL = new Set([400, 401, 403, 404, 405, 406, 409, 414, 421, 431]);

// An answer that says no: a problem (RFC 9457), or what is left of one.
export class Problem extends Error {
  constructor(status, type, title, detail, retryAfterMs) {
    super(detail || title || `status ${status}`);
    this.status = status;
    this.type = type;
    this.retryAfterMs = retryAfterMs;
  }

  static async of(response) {
    let said = {};
    try {
      said = await response.json();
    } catch {
      // Whatever stands between broker and page may answer with something else.
    }
    const seconds = Number(response.headers.get("Retry-After"));
    return new Problem(response.status, said.type, said.title, said.detail, seconds > 0 ? seconds * 1000 : null);
  }
}

// There was no answer, or it broke off.
export class Unreachable extends Error {
  constructor() {
    super("broker unreachable");
  }
}

// An error in words.
export function words(error) {
  return error.status ? `${error.status}: ${error.message}` : error.message;
}

// A key that no other request has. `randomUUID` exists in secure contexts only.
function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
}

// The path of a topic or filter. Browsers resolve levels `.` and `..`, unless the slashes beside them are encoded.
export function topicPath(topic) {
  const levels = topic.split("/");
  const dots = levels.some((level) => level === "." || level === "..");
  return `v1/topics/${dots ? encodeURIComponent(topic) : levels.map(encodeURIComponent).join("/")}`;
}

export class Api {
  constructor(base) {
    this.base = base;
    this.useNothing();
  }

  useNothing() {
    this.authorization = null;
    // Nothing that the browser remembers or would ask for by itself.
    this.credentials = "omit";
  }

  useBasic(user, password) {
    this.useNothing();
    this.authorization = `Basic ${base64(`${user}:${password}`)}`;
  }

  useToken(token) {
    this.useNothing();
    this.authorization = `Bearer ${token}`;
  }

  useCertificate() {
    this.useNothing();
    this.credentials = "same-origin";
  }

  async request(method, path, { fields = {}, content, signal } = {}) {
    const headers = new Headers(fields);
    if (this.authorization) {
      headers.set("Authorization", this.authorization);
    }
    // URLSearchParams writes a space as `+`, which stands for itself here: it is a wildcard.
    const target = path.replaceAll("+", "%20");
    let response;
    try {
      response = await fetch(new URL(target, this.base), {
        method,
        headers,
        body: content,
        signal,
        cache: "no-store",
        credentials: this.credentials,
      });
    } catch (error) {
      throw error instanceof TypeError ? new Unreachable() : error;
    }
    if (!response.ok) {
      throw await Problem.of(response);
    }
    return response;
  }

  // A request to the admin API; returns what it answers, null for nothing.
  async admin(method, path, content) {
    // A change shows by its type that no form of another page has sent it.
    const fields = method === "GET" || method === "HEAD" ? {} : { "Content-Type": "application/json" };
    const text = content === undefined ? undefined : JSON.stringify(content);
    const response = await this.request(method, `admin/v1${path}`, { fields, content: text });
    const answer = await response.text();
    return answer ? JSON.parse(answer) : null;
  }

  // The entries of a list, at most so many, and whether there are more.
  async list(path, most) {
    const items = [];
    const silent = new Set();
    let after = null;
    do {
      const parameters = new URLSearchParams({ limit: Math.min(most - items.length, 500) });
      if (after !== null) {
        parameters.set("after", after);
      }
      const separator = path.includes("?") ? "&" : "?";
      const page = await this.admin("GET", `${path}${separator}${parameters}`);
      items.push(...page.items);
      page.unanswered?.forEach((node) => silent.add(node));
      after = page.next;
    } while (after !== null && items.length < most);
    // Nodes of a cluster that have not answered.
    return { items, hasMore: after !== null, unanswered: [...silent] };
  }

  // Publishes; once, even where the first answer is lost, because the key says that it is the same.
  async publish(topic, content, { qos, retain, contentType, expiryS }) {
    const fields = { "Sterna-QoS": qos, "Idempotency-Key": newKey() };
    if (retain) {
      fields["Sterna-Retain"] = "?1";
    }
    if (contentType) {
      fields["Content-Type"] = contentType;
    }
    if (expiryS !== null) {
      fields["Sterna-Expiry"] = String(expiryS);
    }
    const send = () => this.request("POST", topicPath(topic), { fields, content });
    try {
      await send();
    } catch (error) {
      if (error instanceof Problem) {
        throw error;
      }
      await send();
    }
  }
}

// Something that is tried until it is refused for good or stopped. `on.state(name, text, about)` tells how it is:
// `waiting`, `open`, `failed`. A class that extends this has `attempt(alive)`.
export class Attempts {
  constructor(on) {
    this.on = on;
    this.ended = false;
    // Time between two attempts that went well.
    this.pauseMs = FIRST_DELAY_MS;
    this.wake = () => {};
  }

  async run() {
    const online = () => this.wake();
    addEventListener("online", online);
    let delay = FIRST_DELAY_MS;
    while (!this.ended) {
      let wait = null;
      let trouble = null;
      this.abort = new AbortController();
      try {
        await this.attempt(() => {
          delay = FIRST_DELAY_MS;
          wait = this.pauseMs;
        });
      } catch (error) {
        if (this.ended) {
          break;
        }
        if (error instanceof Problem && FINAL.has(error.status)) {
          this.ended = true;
          this.on.state("failed", error.message, error.status);
          break;
        }
        trouble = error instanceof Problem ? error.message : "broker unreachable";
        wait = error.retryAfterMs ?? null;
      }
      if (this.ended) {
        break;
      }
      wait ??= delay * (0.75 + Math.random() / 2);
      delay = Math.min(delay * 2, LONGEST_DELAY_MS);
      await this.sleep(wait, trouble);
    }
    removeEventListener("online", online);
  }

  // Waits, and says each second how long it still is.
  async sleep(ms, trouble) {
    const end = performance.now() + ms;
    const say = () => {
      const seconds = Math.max(1, Math.ceil((end - performance.now()) / 1000));
      this.on.state("waiting", `${trouble}, next try in ${seconds} s`);
    };
    let ticks = null;
    if (trouble !== null) {
      say();
      ticks = setInterval(say, 1000);
    }
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    clearInterval(ticks);
  }

  stop() {
    this.ended = true;
    this.abort?.abort();
    this.wake();
  }
}

// Reads something again and again, and hands it to `on.read`.
export class Poll extends Attempts {
  constructor(read, intervalMs, on) {
    super(on);
    this.read = read;
    this.pauseMs = intervalMs;
  }

  async attempt(alive) {
    const found = await this.read();
    if (!this.ended) {
      alive();
      this.on.state("open", "");
      this.on.read(found);
    }
  }
}

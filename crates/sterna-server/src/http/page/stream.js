// The broker's HTTP interface as the page uses it: requests, problems, and a subscription that goes on where it
// was cut off.

// Heartbeats come far more often; a response that is silent for longer has died without a word.
const SILENCE_MS = 90_000;
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 15_000;
// What was refused with one of these is refused again.
const FINAL = new Set([400, 401, 403, 404, 405, 406, 414, 421, 431]);

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

// The path of a topic or filter. Browsers resolve levels `.` and `..`, unless the slashes beside them are encoded.
export function topicPath(topic) {
  const levels = topic.split("/");
  const dots = levels.some((level) => level === "." || level === "..");
  return `v1/topics/${dots ? encodeURIComponent(topic) : levels.map(encodeURIComponent).join("/")}`;
}

// A key that no other request has. `randomUUID` exists in secure contexts only.
function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join(""));
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
    const response = await fetch(new URL(path, this.base), {
      method,
      headers,
      body: content,
      signal,
      cache: "no-store",
      credentials: this.credentials,
    });
    if (!response.ok) {
      throw await Problem.of(response);
    }
    return response;
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

// One subscription. `on.state(name, text)` tells how it is: `waiting`, `open`, `failed`; `on.message(object)` is called
// for each message, and `on.gap()` where messages may be missing because the session was gone.
export class Subscription {
  constructor(api, { filter, qos, retained }, on) {
    this.api = api;
    this.path = topicPath(filter);
    this.parameters = new URLSearchParams({ qos });
    if (!retained) {
      this.parameters.set("retained", "no");
    }
    this.on = on;
    this.session = null;
    this.after = null;
    this.ended = false;
    this.wake = () => {};
    this.online = () => this.wake();
  }

  async run() {
    addEventListener("online", this.online);
    let delay = FIRST_DELAY_MS;
    while (!this.ended) {
      let wait = delay * (0.75 + Math.random() / 2);
      try {
        this.on.state("waiting", this.session ? "resuming …" : "subscribing …");
        await this.read(() => {
          delay = FIRST_DELAY_MS;
          wait = 0;
        });
      } catch (error) {
        if (this.ended) {
          break;
        }
        if (error instanceof Problem) {
          if (FINAL.has(error.status)) {
            this.ended = true;
            this.on.state("failed", error.message, error.status);
            break;
          }
          wait = error.retryAfterMs ?? wait;
        }
        wait ||= FIRST_DELAY_MS;
        this.on.state("waiting", `${error.message}; trying again`);
      }
      if (this.ended) {
        break;
      }
      delay = Math.min(delay * 2, LONGEST_DELAY_MS);
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, wait || FIRST_DELAY_MS);
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    removeEventListener("online", this.online);
  }

  // Reads one response to its end.
  async read(alive) {
    this.abort = new AbortController();
    const parameters = new URLSearchParams(this.parameters);
    if (this.session) {
      parameters.set("session", this.session);
      if (this.after !== null) {
        parameters.set("after", this.after);
      }
    }
    let watchdog;
    const heard = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => this.abort.abort(new Error("nothing was heard for long")), SILENCE_MS);
    };
    heard();
    try {
      const response = await this.api.request("GET", `${this.path}?${parameters}`, {
        fields: { Accept: "application/x-ndjson" },
        signal: this.abort.signal,
      });
      const session = response.headers.get("Sterna-Session");
      if (this.session && session !== this.session) {
        this.after = null;
        this.on.gap();
      }
      this.session = session;
      this.on.state("open", "subscribed", response);
      const decoder = new TextDecoder();
      let rest = "";
      for (const reader = response.body.getReader(); ; ) {
        const { done, value } = await reader.read();
        if (done) {
          return;
        }
        heard();
        alive();
        const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          // An empty line is a heartbeat.
          if (line) {
            const message = JSON.parse(line);
            this.on.message(message);
            this.after = message.id ?? this.after;
          }
        }
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  // Ends the subscription, and its session, which would otherwise be kept for a while.
  stop() {
    this.ended = true;
    this.abort?.abort();
    this.wake();
    if (this.session) {
      this.api.request("DELETE", `v1/sessions/${encodeURIComponent(this.session)}`).catch(() => {
        // Then it ends by itself.
      });
    }
  }
}

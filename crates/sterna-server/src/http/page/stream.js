// Responses that do not end: a subscription that goes on where it was cut off, and what operators watch.

import { Attempts, topicPath } from "./api.js";

// Heartbeats come far more often; a response that is silent for longer has died without a word.
const SILENCE_MS = 90_000;
// Retained messages that are shown before what is live.
const RETAINED = 300;

// Reads a response line by line to its end. A line without anything is a heartbeat.
async function readLines(response, heard, line) {
  const decoder = new TextDecoder();
  let rest = "";
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) {
      return;
    }
    heard();
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const text of lines) {
      if (text) {
        line(JSON.parse(text));
      }
    }
  }
}

// The common part of both: a watchdog for responses that have died.
class Stream extends Attempts {
  async open(path, opened, heard, line) {
    let watchdog;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => this.abort.abort(new Error("nothing was heard for long")), SILENCE_MS);
    };
    alive();
    try {
      const fields = { Accept: "application/x-ndjson" };
      const response = await this.api.request("GET", path, { fields, signal: this.abort.signal });
      opened(response);
      await readLines(
        response,
        () => {
          alive();
          heard();
        },
        line,
      );
    } finally {
      clearTimeout(watchdog);
    }
  }
}

// One subscription. `on.message(object)` is called for each message, and `on.gap()` where messages may be missing
// because the session was gone.
export class Subscription extends Stream {
  constructor(api, { filter, qos, retained }, on) {
    super(on);
    this.api = api;
    this.path = topicPath(filter);
    this.parameters = new URLSearchParams({ qos });
    if (!retained) {
      this.parameters.set("retained", "no");
    }
    this.session = null;
    this.after = null;
  }

  async attempt(alive) {
    this.on.state("waiting", this.session ? "resuming …" : "subscribing …");
    const parameters = new URLSearchParams(this.parameters);
    if (this.session) {
      parameters.set("session", this.session);
      if (this.after !== null) {
        parameters.set("after", this.after);
      }
    }
    const opened = (response) => {
      const session = response.headers.get("Sterna-Session");
      if (this.session && session !== this.session) {
        this.after = null;
        this.on.gap();
      }
      this.session = session;
      this.on.state("open", "subscribed", response);
    };
    await this.open(`${this.path}?${parameters}`, opened, alive, (message) => {
      this.on.message(message);
      this.after = message.id ?? this.after;
    });
  }

  // Ends the subscription, and its session, which would otherwise be kept for a while.
  stop() {
    super.stop();
    if (this.session) {
      this.api.request("DELETE", `v1/sessions/${encodeURIComponent(this.session)}`).catch(() => {
        // Then it ends by itself.
      });
    }
  }
}

// An operator's trace of the broker: `on.event(object)` is called for each event.
export class Trace extends Stream {
  constructor(api, parameters, on) {
    super(on);
    this.api = api;
    this.parameters = new URLSearchParams(parameters);
    this.was = false;
  }

  async attempt(alive) {
    this.on.state("waiting", "asking …");
    const opened = (response) => {
      if (this.was) {
        this.on.gap?.();
      }
      this.was = true;
      this.on.state("open", "watching", response);
    };
    await this.open(`admin/v1/trace?${this.parameters}`, opened, alive, (event) => {
      if (event.event !== "alive" && event.event !== "watching") {
        this.on.event(event);
      }
    });
  }
}

// Messages as an operator sees them pass, on a listener that has no topics: with `on` of a subscription. Other nodes of
// a cluster would tell the same messages again.
export class Passing extends Trace {
  constructor(api, { filter, retained }, on) {
    super(api, { topic: filter, events: "received", payloads: "yes", local: "yes" }, on);
    this.filter = filter;
    this.retained = retained;
    on.event = (event) => {
      if (event.event === "received") {
        on.message({ ...event, retain: false, redelivered: false });
      } else if (event.event === "lost") {
        on.gap();
      }
    };
  }

  async attempt(alive) {
    if (this.retained) {
      const { items } = await this.api.list(`/retained?filter=${encodeURIComponent(this.filter)}`, RETAINED);
      this.retained = false;
      items.forEach((message) => this.on.message(message));
    }
    await super.attempt(alive);
  }
}

// The tab of the log: who came, what was refused or dropped, and the ways of messages, as it happens.

import { $, make } from "./dom.js";
import { clock } from "./figures.js";
import { address, go } from "./tabs.js";
import { Trace } from "./stream.js";

const ROWS = 500;
const TROUBLE = "login,login_refused,action,refused,dropped";
const BAD = new Set(["refused", "dropped", "login_refused", "lost", "unanswered"]);

export class Log {
  constructor(place) {
    this.place = place;
    this.trace = null;
    this.backlog = [];
    this.paused = false;
    this.drawing = false;
    $("log-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const parameters = new URLSearchParams();
      for (const [name, id] of [["client", "log-client"], ["topic", "log-topic"]]) {
        const value = document.getElementById(id).value.trim();
        if (value) {
          parameters.set(name, value);
        }
      }
      const wanted = address("log", parameters.size ? String(parameters) : undefined);
      if (wanted === location.hash) {
        this.start(parameters);
      } else {
        go("log", parameters.size ? String(parameters) : undefined);
      }
    });
    $("log-pause").addEventListener("click", () => {
      this.paused = !this.paused;
      $("log-pause").setAttribute("aria-pressed", String(this.paused));
      $("log-pause").textContent = this.paused ? "Go on" : "Pause";
      this.draw();
    });
    $("log-clear").addEventListener("click", () => this.clear());
  }

  show(argument) {
    const isBarred = this.place.bars($("log-notice"), "operator");
    $("log-tools").hidden = isBarred;
    if (isBarred) {
      return;
    }
    const parameters = new URLSearchParams(argument ?? "");
    $("log-client").value = parameters.get("client") ?? "";
    $("log-topic").value = parameters.get("topic") ?? "";
    this.start(parameters);
  }

  hide() {
    this.trace?.stop();
    this.trace = null;
  }

  clear() {
    this.backlog = [];
    $("log-events").replaceChildren();
  }

  // Without a client or a topic it is the log of what went wrong and who came; with one, the ways of messages.
  start(parameters) {
    this.trace?.stop();
    this.clear();
    const [client, topic] = [parameters.get("client"), parameters.get("topic")];
    const wanted = { ...(client && { client }), ...(topic && { topic }) };
    const isTrace = Boolean(client || topic);
    if (!isTrace) {
      wanted.events = TROUBLE;
    } else if (client && !topic) {
      wanted.events = `received,queued,logged,sent,acknowledged,${TROUBLE}`;
    }
    const what = isTrace ? [client && `messages of ${client}`, topic && `topics ${topic}`].filter(Boolean).join(", ") : null;
    $("log-subject").textContent = what ?? "logins, refusals, drops and operators' actions of all clients";
    const tell = this.place.teller($("log-notice"));
    const mine = new Trace(this.place.api, wanted, {
      state: (state, text, about) => {
        if (mine === this.trace) {
          $("log-state").textContent = state === "open" ? "live" : "";
          // Asking takes a moment, which is not worth a word.
          tell(state, state === "waiting" && text.endsWith("…") ? "" : text, state === "failed" ? about : undefined);
        }
      },
      event: (event) => {
        if (mine === this.trace) {
          this.backlog.push(event);
          this.backlog.splice(0, this.backlog.length - ROWS);
          this.draw();
        }
      },
      gap: () => {
        this.backlog.push({ event: "lost", at_ms: Date.now(), events: "some" });
        this.draw();
      },
    });
    this.trace = mine;
    mine.run();
  }

  draw() {
    if (this.drawing || this.paused) {
      return;
    }
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const list = $("log-events");
      list.prepend(...this.backlog.map(row).reverse());
      this.backlog = [];
      while (list.childElementCount > ROWS) {
        list.lastElementChild.remove();
      }
    });
  }
}

// An event in words.
function text(event) {
  const parts = [];
  const add = (word, value) => {
    if (value !== null && value !== undefined && value !== "") {
      parts.push(word ? `${word} ${value}` : String(value));
    }
  };
  if (event.event === "action") {
    add("", event.action);
    add("on", event.on);
    add("by", event.user ?? "nobody by name");
  } else if (event.event.startsWith("login")) {
    add("", event.protocol?.toUpperCase());
    add("client", event.client);
    add("user", event.user);
    add("from", event.peer);
  } else {
    add("from", event.publisher);
    add("to", event.reader);
    add("matched", event.matched);
    add("away", event.away || null);
    add("bytes", event.payload_bytes);
    add("QoS", event.qos);
    add("waiting", event.waiting);
    add("messages", event.messages);
    add("events", event.events);
    add("", event.redelivered ? "again" : null);
    add("", event.outcome);
    add("reason code", event.reason_code);
  }
  add("", event.reason);
  add("", event.detail);
  add("at", event.node);
  return parts.join(" · ");
}

function row(event) {
  const isBad = BAD.has(event.event) || (event.event === "action" && event.reason);
  return make(
    "li",
    { class: isBad ? "bad" : "" },
    make("time", { datetime: new Date(event.at_ms).toISOString() }, clock(event.at_ms)),
    make("span", { class: `event ${event.event}` }, event.event.replace("_", " ")),
    event.topic ? make("span", { class: "topic" }, event.topic) : null,
    make("span", { class: "about" }, text(event)),
  );
}

// The tab of messages: forms, the list, and what ties them to the interface and the chart.

import { words } from "./api.js";
import { Chart } from "./chart.js";
import { $, facts, make } from "./dom.js";
import { bytesOf, clock, hex, preview, whole } from "./figures.js";
import { Passing, Subscription } from "./stream.js";

// Rows that are kept in the list, and messages that wait to be shown.
const ROWS = 300;
const BACKLOG = 1_000;
const EXAMPLE = "house/kitchen/temperature";

// The version of HTTP that a response came by, as the browser tells it.
function protocol(response) {
  const entries = performance.getEntriesByName(response.url);
  const name = entries.at(-1)?.nextHopProtocol ?? performance.getEntriesByType("navigation")[0]?.nextHopProtocol;
  return { h3: "HTTP/3", h2: "HTTP/2", "http/1.1": "HTTP/1.1" }[name] ?? name ?? "";
}

function showState(state, text) {
  $("state").dataset.state = state;
  $("state-text").textContent = text;
}

export class Messages {
  constructor(place) {
    this.place = place;
    const empty = "Payloads that are numbers, or JSON objects with numbers, are drawn here.";
    this.chart = new Chart($("chart"), $("legend"), empty, "Numeric payloads over time");
    this.subscription = null;
    this.backlog = [];
    this.received = 0;
    this.paused = false;
    this.drawing = false;
    $("subscribe-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.subscription) {
        this.stop();
        showState("idle", "not subscribed");
      } else {
        this.start();
      }
    });
    $("first-subscribe").addEventListener("click", () => {
      $("filter").value = "#";
      this.start();
    });
    $("publish-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.publish();
    });
    $("pause").addEventListener("click", () => {
      this.paused = !this.paused;
      $("pause").setAttribute("aria-pressed", String(this.paused));
      $("pause").textContent = this.paused ? "Go on" : "Pause";
      this.draw();
    });
    $("clear").addEventListener("click", () => {
      this.backlog = [];
      this.received = 0;
      $("messages").replaceChildren();
      this.chart.clear();
      this.draw();
    });
    $("chart-window").addEventListener("change", () => {
      this.chart.windowS = Number($("chart-window").value);
      this.chart.soon(0);
    });
  }

  show() {
    const { place } = this;
    const isBarred = place.isAdmin !== false && place.bars($("messages-notice"), "operator");
    $("messages-tools").hidden = isBarred;
    const open = isBarred && this.publicPage();
    if (open) {
      $("messages-notice").append(" Topics that you may subscribe to: ", make("a", { href: open }, open));
    }
    $("subscribe-qos-label").hidden = place.isAdmin === true;
    this.showExamples();
    this.chart.soon(0);
  }

  hide() {}

  // The page on a listener of topics, if there is one that this host has by the same name.
  publicPage() {
    const listener = this.place.listeners.find((url) => /^https?:/.test(url));
    const [, scheme, port] = listener?.match(/^(\w+):.*:(\d+)/) ?? [];
    return port && `${scheme}://${location.hostname}:${port}/`;
  }

  // Other credentials are used: sessions belong to who made them.
  renew() {
    if (this.subscription) {
      this.stop();
      this.start();
    }
    this.show();
  }

  showExamples() {
    const host = location.hostname;
    const root = location.href.replace(/[#?].*/, "");
    const port = (scheme) => {
      const url = this.place.listeners.find((one) => one.startsWith(`${scheme}://`));
      return url?.match(/:(\d+)(\/|$)/)?.[1];
    };
    const mqtt = port("mqtt");
    const command = `mosquitto_pub -h ${host}${mqtt && mqtt !== "1883" ? ` -p ${mqtt}` : ""}`;
    const http = port("http");
    const lines = [`${command} -t ${EXAMPLE} -m 21.5`, `sterna pub mqtt://${host}${mqtt ? `:${mqtt}` : ""} -t ${EXAMPLE} -m 21.5`];
    if (this.place.isAdmin === false) {
      lines.push(`curl -d 21.5 ${root}v1/topics/${EXAMPLE}`);
    } else if (http) {
      lines.push(`curl -d 21.5 ${host}:${http}/v1/topics/${EXAMPLE}`);
    }
    $("examples").replaceChildren(...lines.map((line) => make("li", {}, make("code", {}, line))));
  }

  // ---------------------------------------------------------------- subscribing

  showSubscribed(on) {
    const button = $("subscribe-button");
    button.textContent = on ? "Stop" : "Subscribe";
    button.toggleAttribute("data-on", on);
    for (const id of ["filter", "subscribe-qos", "retained"]) {
      $(id).disabled = on;
    }
    $("first-subscribe").hidden = on;
    $("waiting-text").hidden = !on;
  }

  stop() {
    this.subscription?.stop();
    this.subscription = null;
    this.showSubscribed(false);
  }

  start() {
    const filter = $("filter").value;
    const wanted = { filter, qos: $("subscribe-qos").value, retained: $("retained").checked };
    const Kind = this.place.isAdmin ? Passing : Subscription;
    const mine = new Kind(this.place.api, wanted, {
      state: (state, text, about) => {
        if (mine !== this.subscription) {
          return;
        }
        if (state === "open") {
          const by = protocol(about);
          const what = this.place.isAdmin ? "watching" : "subscribed to";
          showState("open", `${what} ${filter}${by ? ` over ${by}` : ""}`);
          return;
        }
        showState(state, text);
        if (state === "failed") {
          this.stop();
          if (about === 401) {
            this.place.openCredentials();
          }
        }
      },
      message: (message) => {
        if (mine === this.subscription) {
          this.arrived(message);
        }
      },
      gap: () => {
        this.backlog.push({ gap: true, at: Date.now() });
        this.draw();
      },
    });
    this.subscription = mine;
    this.showSubscribed(true);
    mine.run();
  }

  // ---------------------------------------------------------------- the list

  arrived(message) {
    const at = Date.now();
    this.received += 1;
    this.chart.add(message.topic, message.payload, at);
    this.backlog.push({ message, at });
    if (this.backlog.length > BACKLOG) {
      this.backlog.splice(0, this.backlog.length - BACKLOG);
    }
    this.draw();
  }

  draw() {
    if (this.drawing) {
      return;
    }
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const held = this.paused && this.backlog.length ? `, ${this.backlog.length} held` : "";
      $("count").textContent = this.received ? `${this.received.toLocaleString("en")} received${held}` : "";
      if (this.paused) {
        return;
      }
      const list = $("messages");
      const rows = this.backlog.slice(-ROWS).map((entry) => (entry.gap ? gapRow() : row(entry)));
      this.backlog = [];
      list.prepend(...rows.reverse());
      while (list.childElementCount > ROWS) {
        list.lastElementChild.remove();
      }
    });
  }

  // ---------------------------------------------------------------- publishing

  async publish() {
    const result = $("publish-result");
    const topic = $("topic").value;
    const wanted = {
      qos: $("publish-qos").value,
      retain: $("retain").checked,
      contentType: $("content-type").value.trim(),
      expiryS: $("expiry").value === "" ? null : Number($("expiry").value),
    };
    $("publish-button").disabled = true;
    result.textContent = "";
    const began = performance.now();
    try {
      await this.send(topic, $("payload").value, wanted);
      result.dataset.state = "good";
      result.textContent = `published to ${topic} in ${(performance.now() - began).toFixed(0)} ms`;
    } catch (error) {
      result.dataset.state = "bad";
      result.textContent = error.status ? words(error) : `not sent: ${error.message}`;
      if (error.status === 401) {
        this.place.openCredentials();
      }
    } finally {
      $("publish-button").disabled = false;
    }
  }

  async send(topic, payload, wanted) {
    const { api, isAdmin } = this.place;
    if (!isAdmin) {
      await api.publish(topic, new TextEncoder().encode(payload), wanted);
      return;
    }
    const content = { topic, payload, qos: Number(wanted.qos), retain: wanted.retain };
    if (wanted.contentType) {
      content.content_type = wanted.contentType;
    }
    if (wanted.expiryS !== null) {
      content.expiry_s = wanted.expiryS;
    }
    await api.admin("POST", "/publish", content);
  }
}

function gapRow() {
  const text = "The page was away for a while, or too slow; messages may be missing here.";
  return make("li", { class: "problem" }, text);
}

function row({ message, at }) {
  const item = $("message-row").content.firstElementChild.cloneNode(true);
  const time = item.querySelector("time");
  time.dateTime = new Date(at).toISOString();
  time.textContent = clock(at);
  item.querySelector(".topic").textContent = message.topic;
  item.querySelector(".topic").title = message.topic;
  const payload = item.querySelector(".payload");
  const [text, kind] = preview(message);
  payload.textContent = text;
  payload.classList.add(kind);
  const marks = [`QoS ${message.qos}`, message.retain && "retained", message.redelivered && "again"];
  for (const mark of marks.filter(Boolean)) {
    item.querySelector(".marks").append(make("span", {}, mark));
  }
  // Folded content is filled in when it is opened.
  const details = item.querySelector("details");
  details.addEventListener("toggle", () => fill(details, message), { once: true });
  return item;
}

function fill(details, message) {
  details.querySelector("pre").textContent = whole(message);
  const rows = [
    ["id", message.id],
    ["payload", message.is_cut ? `${message.payload_bytes} bytes, of which the first are shown` : undefined],
    ["content type", message.content_type],
    ["payload format", message.payload_format],
    ["expires after", message.expiry_s === undefined ? undefined : `${message.expiry_s} s`],
    ["response topic", message.response_topic],
    ["correlation data", message.correlation_data && hex(bytesOf(message.correlation_data))],
    ...(message.user_properties ?? []),
  ];
  details.querySelector("dl").append(...facts(rows));
}

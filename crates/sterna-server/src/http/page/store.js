// The tab of the store: what is on disk and in memory, certificates, and orders to the process.

import { Poll } from "./api.js";
import { $, facts, make, row, table, twice } from "./dom.js";
import { bytes, count, day, duration } from "./figures.js";

const INTERVAL_MS = 3_000;
const CERTIFICATES = [
  ["Subject", "name"],
  ["Ends", ""],
  ["Fingerprint", "wide"],
];
const DAY_MS = 86_400_000;

export class Store {
  constructor(place) {
    this.place = place;
    this.poll = null;
  }

  show() {
    const { place } = this;
    const isBarred = place.bars($("store-notice"), "viewer");
    $("store-tools").hidden = isBarred;
    if (isBarred) {
      return;
    }
    const get = (path) => place.api.admin("GET", path);
    const all = () => Promise.all([get("/node"), get("/store"), get("/memory"), get("/certificates")]);
    this.poll = new Poll(all, INTERVAL_MS, {
      state: place.teller($("store-notice")),
      read: (found) => this.draw(...found),
    });
    this.poll.run();
    this.offer();
  }

  hide() {
    this.poll?.stop();
    this.poll = null;
  }

  draw(node, store, memory, { items }) {
    const dropped = Object.entries(node.dropped);
    $("node-facts").replaceChildren(
      ...facts([
        ["version", node.version],
        ["up for", duration(node.uptime_s)],
        ["clients", count(node.clients_connected)],
        ["sessions", count(node.sessions)],
        ["subscriptions", count(node.subscriptions)],
        ["messages received", count(node.messages_received)],
        ["messages sent", count(node.messages_sent)],
        ["messages queued", `${count(node.queued_messages)}, ${bytes(node.queued_bytes)}`],
        ["messages retained", `${count(node.retained_messages)}, ${bytes(node.retained_bytes)}`],
        ["messages dropped", dropped.length ? dropped.map(([reason, number]) => `${reason} ${count(number)}`).join(", ") : "none"],
        ["shards", node.shards.length],
        ["listeners", node.listeners.join("\n")],
      ]),
    );
    const isOn = store.is_enabled;
    const each = store.syncs ? `${(store.sync_us / store.syncs / 1000).toFixed(1)} ms` : null;
    $("store-facts").replaceChildren(
      ...(isOn
        ? facts([
            ["log", `${bytes(store.log_bytes)} in ${count(store.segments)} segment${store.segments === 1 ? "" : "s"}`],
            ["written", bytes(store.written_bytes)],
            ["not written yet", bytes(store.unwritten_bytes)],
            ["frames not synced", count(store.unsynced_frames)],
            ["syncs", count(store.syncs)],
            ["mean time of a sync", each],
            ["failures", count(store.failures)],
            ["damaged places", count(store.damaged_places)],
            ["full", store.is_full ? "yes: messages are refused" : "no"],
          ])
        : [make("p", { class: "faint" }, "There is no store: nothing outlives the process.")]),
    );
    this.drawMemory(memory);
    const rows = items.map((one) => {
      const ends = one.expires_s ? one.expires_s * 1000 : null;
      const left = ends === null ? null : `${day(ends)}, in ${count(Math.floor((ends - Date.now()) / DAY_MS))} days`;
      const subject = one.is_for_development ? `${one.subject} (for development)` : one.subject;
      return row(CERTIFICATES, [subject, left, make("code", {}, one.fingerprint)]);
    });
    const none = make("p", { class: "faint" }, "No listener presents a certificate.");
    $("certificates").replaceChildren(rows.length ? table(CERTIFICATES, rows, "Certificates") : none);
  }

  drawMemory({ resident_bytes: resident, kinds }) {
    $("memory-total").textContent = `${bytes(resident)} resident`;
    const sorted = Object.entries(kinds).sort(([, one], [, other]) => other - one).filter(([, value]) => value > 0);
    const most = sorted[0]?.[1] ?? 1;
    $("memory-kinds").replaceChildren(
      ...sorted.map(([name, value]) => {
        const label = name.replace(/_bytes$/, "").replaceAll("_", " ");
        const bar = make("meter", { min: 0, max: most, value, "aria-label": label });
        return make("li", {}, make("span", {}, label), bar, make("span", { class: "number" }, bytes(value)));
      }),
    );
  }

  // Orders to the process.
  offer() {
    const { api } = this.place;
    const output = $("orders-result");
    if (!this.place.may("admin")) {
      $("orders").replaceChildren(make("p", { class: "faint" }, "Reloading and draining need the role admin."));
      return;
    }
    const told = ({ unchanged }) => (unchanged.length ? `reloaded; these need a restart: ${unchanged.join(", ")}` : "reloaded");
    const reload = make("button", { type: "button" }, "Reload the configuration");
    reload.addEventListener("click", () => this.place.change(output, told, () => api.admin("POST", "/reload")));
    const drain = twice(
      "Drain",
      "Really end the broker?",
      () => this.place.change(output, "the broker ends", () => api.admin("POST", "/drain")),
      { class: "danger" },
    );
    $("orders").replaceChildren(reload, drain);
  }
}

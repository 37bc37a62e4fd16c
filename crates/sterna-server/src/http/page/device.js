// The page of one device: who it is, its path over time, its queue, and what an operator may do with it.

import { Poll } from "./api.js";
import { Chart } from "./chart.js";
import { facts, make, twice } from "./dom.js";
import { bytes, called, clock, count, day, loss, milliseconds, transport } from "./figures.js";
import { address } from "./tabs.js";

const INTERVAL_MS = 1_000;
const SUBSCRIPTIONS = 50;

export class Device {
  constructor(place, id, panel, notice) {
    this.place = place;
    this.id = id;
    this.panel = panel;
    this.last = null;
    this.output = make("output", { role: "status" });
    this.title = make("h2", { tabindex: "-1" }, "…");
    this.tools = make("div", { class: "tools" });
    this.facts = make("dl", { class: "facts" });
    this.subscriptions = make("ul", { class: "plain" });
    this.moves = make("ol", { class: "plain", role: "log" });
    const chart = make("div", { id: "path-chart", class: "chart" });
    const legend = make("ul", { class: "legend", "aria-label": "Series of the chart" });
    const back = make("a", { href: address("clients"), class: "back" }, "‹ all clients");
    panel.replaceChildren(
      make("section", {}, back, this.title, this.tools, this.output, this.facts),
      make("section", {}, make("h2", {}, "Path"), chart, legend, this.moves),
      make("section", {}, make("h2", {}, "Subscriptions"), this.subscriptions),
    );
    this.chart = new Chart(chart, legend, "The path is looked at once a second.", "The path of this client over time");
    this.poll = new Poll(() => place.api.admin("GET", `/clients/${encodeURIComponent(id)}`), INTERVAL_MS, {
      state: (state, text, status) => {
        if (state === "failed" && status === 404) {
          this.gone();
        } else {
          place.teller(notice)(state, text, status);
        }
      },
      read: (client) => this.draw(client),
    });
    this.poll.run();
  }

  end() {
    this.poll.stop();
    this.chart.end();
    this.panel.replaceChildren();
  }

  draw(client) {
    const isFirst = this.last === null;
    const at = Date.now();
    const { path } = client;
    this.facts.replaceChildren(
      ...facts([
        ["protocol", transport(client)],
        ["user", client.user],
        ["shown by", client.proof === "nothing" ? null : client.proof],
        ["address", client.peer],
        ["node", client.node],
        ["listener", client.listener],
        ["connected", `${day(client.since_ms)} ${clock(client.since_ms)}`],
        ["messages in", count(client.messages_received)],
        ["messages out", count(client.messages_sent)],
        ["round trip", `${milliseconds(path.rtt_us)}, least ${milliseconds(path.min_rtt_us)}`],
        ["lost packets", loss(path)],
        ["received", bytes(path.received_bytes)],
        ["sent", bytes(path.sent_bytes)],
        ["waiting", client.pending === null ? "in the log, not counted yet" : `${count(client.pending)}, ${bytes(client.pending_bytes)}`],
        ["in flight", count(client.unacknowledged)],
        ["early data", client.transport === "quic" ? path.early_data : null],
        ["resumed", client.transport === "quic" ? (path.resumed ? "yes" : "no") : null],
        ["migrations", client.transport === "quic" ? count(path.migrations) : null],
        ["open streams", client.transport === "quic" ? count(path.open_streams) : null],
        ["largest packet", path.mtu_bytes ? `${path.mtu_bytes} B` : null],
        ["congestion window", path.congestion_window_bytes ? bytes(path.congestion_window_bytes) : null],
      ]),
    );
    if (path.rtt_us) {
      this.chart.put("round trip, ms", "round trip", path.rtt_us / 1000, at);
    }
    this.chart.put("lost packets", "lost packets", path.lost_packets, at);
    if (client.pending !== null) {
      this.chart.put("queue, messages", "queue", client.pending + client.unacknowledged, at);
    }
    if (this.last) {
      const seconds = (at - this.last.at) / 1000;
      this.chart.put("bytes per second", "received/s", Math.round((path.received_bytes - this.last.path.received_bytes) / seconds), at);
      this.chart.put("bytes per second", "sent/s", Math.round((path.sent_bytes - this.last.path.sent_bytes) / seconds), at);
      this.chart.put("messages/s", "messages/s", Math.round((client.messages_received + client.messages_sent - this.last.messages) / seconds), at);
      if (client.peer !== this.last.peer || path.migrations > this.last.path.migrations) {
        this.chart.mark(at);
        this.moves.prepend(make("li", {}, `${clock(at)} moved from ${this.last.peer} to ${client.peer}`));
      }
    }
    const messages = client.messages_received + client.messages_sent;
    this.last = { at, path, messages, peer: client.peer, name: client.name };
    if (isFirst) {
      this.begin(client);
    }
  }

  // The parts that do not change while the connection lives.
  begin(client) {
    this.title.textContent = called(client);
    this.title.focus({ preventScroll: true });
    if (this.place.may("operator")) {
      const disconnect = twice("Disconnect", "Really disconnect?", () => this.disconnect(), { class: "danger" });
      const trace = make("a", { class: "button", href: address("log", String(new URLSearchParams({ client: client.name ?? "" }))) }, "Trace its messages");
      this.tools.replaceChildren(disconnect, client.name ? trace : null);
    } else {
      this.tools.replaceChildren(make("p", { class: "faint" }, "Disconnecting and tracing need the role operator."));
    }
    this.listSubscriptions(client);
  }

  async listSubscriptions(client) {
    if (client.protocol !== "mqtt" || !client.name) {
      this.subscriptions.replaceChildren(make("li", { class: "faint" }, `${count(client.subscriptions)} of ${client.protocol.toUpperCase()}`));
      return;
    }
    try {
      const of = client.user === null ? "" : `?${new URLSearchParams({ user: client.user })}`;
      const path = `/sessions/${encodeURIComponent(client.name)}/subscriptions${of}`;
      const { items, hasMore } = await this.place.api.list(path, SUBSCRIPTIONS);
      const rows = items.map((one) => make("li", {}, make("code", {}, one.filter), ` QoS ${one.qos}`));
      const none = make("li", { class: "faint" }, "It has none.");
      this.subscriptions.replaceChildren(...(rows.length ? rows : [none]), hasMore ? make("li", {}, "and more") : "");
    } catch (error) {
      this.subscriptions.replaceChildren(make("li", { class: "faint" }, error.message));
    }
  }

  async disconnect() {
    const { api } = this.place;
    const done = await this.place.change(this.output, "disconnected", () => api.admin("DELETE", `/clients/${encodeURIComponent(this.id)}`));
    if (done) {
      this.tools.replaceChildren();
    }
  }

  // The connection has ended; the client may be back on another.
  async gone() {
    this.tools.replaceChildren();
    this.output.dataset.state = "bad";
    this.output.textContent = "This connection has ended.";
    const name = this.last?.name;
    if (!name) {
      return;
    }
    try {
      const { items } = await this.place.api.list(`/clients?name=${encodeURIComponent(name)}`, 1);
      if (items.length) {
        const link = make("a", { class: "button", href: address("clients", items[0].id) }, "Its new connection");
        this.tools.replaceChildren(link);
      }
    } catch {
      // Then there is no link.
    }
  }
}

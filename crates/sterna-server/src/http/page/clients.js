// The tab of clients: a list that is sorted as one likes, and the page of one device.

import { Poll } from "./api.js";
import { Device } from "./device.js";
import { $, make, row, silent, table, withNode } from "./dom.js";
import { bytes, called, count, loss, milliseconds, transport } from "./figures.js";
import { address } from "./tabs.js";

const INTERVAL_MS = 2_000;
// Clients that are read at first, and with each press of the button.
const PAGE = 200;
const COLUMNS = [
  ["Client", "name"],
  ["Protocol", ""],
  ["Round trip", "number"],
  ["Loss", "number"],
  ["Queue", "number"],
  ["Bytes", "number"],
];

const traffic = (client) => client.path.sent_bytes + client.path.received_bytes;
// By what clients are sorted: the greatest first, but names.
const ORDERS = {
  rtt: (client) => client.path.rtt_us,
  loss: (client) => client.path.lost_packets / Math.max(client.path.sent_datagrams, 1),
  queue: (client) => client.pending ?? Number.MAX_SAFE_INTEGER,
  bytes: traffic,
};
const HEADS = { Client: "name", "Round trip": "rtt", Loss: "loss", Queue: "queue", Bytes: "bytes" };

export class Clients {
  constructor(place) {
    this.place = place;
    this.poll = null;
    this.device = null;
    this.found = { items: [], hasMore: false, unanswered: [] };
    this.most = PAGE;
    $("clients-sort").addEventListener("change", () => this.read(PAGE));
    $("clients-more").addEventListener("click", () => this.read(this.most + PAGE));
    $("clients-search").addEventListener("input", () => this.draw());
  }

  show(argument) {
    const isBarred = this.place.bars($("clients-notice"), "viewer");
    $("clients-list").hidden = isBarred || argument !== null;
    $("client-page").hidden = isBarred || argument === null;
    if (isBarred) {
      return;
    }
    if (argument !== null) {
      this.device = new Device(this.place, argument, $("client-page"), $("clients-notice"));
      return;
    }
    this.read(PAGE);
  }

  // Reads the first clients in the wanted order; the broker sorts all of them.
  read(most) {
    const { api } = this.place;
    this.most = most;
    this.poll?.stop();
    const by = $("clients-sort").value;
    this.poll = new Poll(() => api.list(`/clients?sort=${by}`, most), INTERVAL_MS, {
      state: this.place.teller($("clients-notice")),
      read: (found) => {
        this.found = found;
        this.draw();
      },
    });
    this.poll.run();
    if (this.found.items.length) {
      this.draw();
    }
  }

  hide() {
    this.poll?.stop();
    this.device?.end();
    [this.poll, this.device] = [null, null];
  }

  sort(by) {
    $("clients-sort").value = by;
    this.read(PAGE);
  }

  draw() {
    const by = $("clients-sort").value;
    const wanted = $("clients-search").value.trim().toLowerCase();
    const { items, hasMore, unanswered } = this.found;
    const fits = (client) =>
      [client.name, client.user, client.peer, client.node, transport(client)].some((text) => text?.toLowerCase().includes(wanted));
    // They come sorted, but after a press those that are there are shown until the answer comes.
    const shown = (wanted ? items.filter(fits) : [...items]).sort((one, other) => {
      const order = ORDERS[by];
      const nameless = (client) => Number(called(client).startsWith("("));
      return (order ? order(other) - order(one) : nameless(one) - nameless(other)) || called(one).localeCompare(called(other), "en", { numeric: true });
    });
    $("clients-more").hidden = !hasMore;
    const all = hasMore ? `the first ${count(items.length)} clients` : `${count(items.length)} client${items.length === 1 ? "" : "s"}`;
    $("clients-count").textContent = wanted ? `${shown.length} of ${all}` : all;
    const focused = document.activeElement?.dataset?.key;
    const columns = withNode(COLUMNS, items);
    const made = table(columns, shown.map((client) => this.row(client, columns)), "Clients");
    for (const head of made.querySelectorAll("th")) {
      this.sortable(head, by);
    }
    $("clients-table").replaceChildren(silent(unanswered), items.length ? made : make("p", { class: "faint" }, "No client is connected."));
    if (focused) {
      $("clients-table").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    }
  }

  sortable(head, by) {
    const key = HEADS[head.textContent];
    if (!key) {
      return;
    }
    const button = make("button", { type: "button", "data-key": `sort-${key}` }, head.textContent);
    button.addEventListener("click", () => this.sort(key));
    head.replaceChildren(button);
    if (key === by) {
      head.setAttribute("aria-sort", key === "name" ? "ascending" : "descending");
    }
  }

  row(client, columns) {
    const link = make("a", { href: address("clients", client.id), "data-key": client.id }, called(client));
    const who = client.user && client.user !== client.name ? make("span", { class: "faint" }, client.user) : null;
    return row(columns, [
      make("div", {}, link, who),
      ...(columns === COLUMNS ? [] : [client.node]),
      transport(client),
      milliseconds(client.path.rtt_us),
      loss(client.path),
      count(client.pending),
      bytes(traffic(client)),
    ]);
  }
}

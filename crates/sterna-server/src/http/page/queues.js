// The tab of queues: a list, and one queue with its messages.

import { Poll } from "./api.js";
import { $, facts, make, row, silent, table, twice, withNode } from "./dom.js";
import { bytes, clock, count, preview, whole } from "./figures.js";
import { address } from "./tabs.js";

const INTERVAL_MS = 2_000;
const MOST = 1_000;
const PEEKED = 50;
const COLUMNS = [
  ["Queue", "name"],
  ["Messages", "number"],
  ["Delayed", "number"],
  ["Bytes", "number"],
  ["Consumers", "number"],
  ["Dead letters", ""],
];

export class Queues {
  constructor(place) {
    this.place = place;
    this.poll = null;
    this.name = null;
    this.output = $("queue-result");
  }

  show(argument) {
    const isBarred = this.place.bars($("queues-notice"), "viewer");
    this.name = argument;
    $("queues-list").hidden = isBarred || argument !== null;
    $("queue-page").hidden = isBarred || argument === null;
    if (isBarred) {
      return;
    }
    const { api } = this.place;
    if (argument === null) {
      this.watch(() => api.list("/queues", MOST), (found) => this.drawList(found));
      return;
    }
    $("queue-title").textContent = argument;
    this.output.textContent = "";
    $("queue-facts").replaceChildren();
    $("queue-tools").hidden = true;
    $("queue-messages").replaceChildren();
    this.watch(() => api.admin("GET", `/queues/${encodeURIComponent(argument)}`), (queue) => this.drawQueue(queue));
    this.offer();
    this.peek();
  }

  hide() {
    this.poll?.stop();
    this.poll = null;
  }

  watch(read, found) {
    this.poll = new Poll(read, INTERVAL_MS, { state: this.place.teller($("queues-notice")), read: found });
    this.poll.run();
  }

  drawList({ items, hasMore, unanswered }) {
    const columns = withNode(COLUMNS, items);
    const focused = document.activeElement?.dataset?.key;
    const rows = items.map((queue) => {
      const link = make("a", { href: address("queues", queue.name), "data-key": queue.name }, queue.name);
      const dead = queue.dead_letter && make("code", {}, queue.dead_letter);
      const node = columns === COLUMNS ? [] : [queue.node];
      return row(columns, [link, ...node, count(queue.messages), count(queue.delayed), bytes(queue.bytes), count(queue.consumers), dead]);
    });
    const none = make(
      "p",
      { class: "faint" },
      "There is no queue. An AMQP client makes one by an address ",
      make("code", {}, "queue/NAME"),
      ", the configuration by ",
      make("code", {}, "[[amqp.queue]]"),
      ".",
    );
    $("queues-table").replaceChildren(silent(unanswered), rows.length ? table(columns, rows, "Queues") : none, hasMore ? "There are more." : "");
    if (focused) {
      $("queues-table").querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    }
  }

  drawQueue(queue) {
    const dead = queue.dead_letter && make("a", { href: address("queues", queue.dead_letter) }, queue.dead_letter);
    $("queue-facts").replaceChildren(
      ...facts([
        ["takes", queue.filter],
        ["node", queue.node],
        ["messages", count(queue.messages)],
        ["not due yet", count(queue.delayed)],
        ["bytes", bytes(queue.bytes)],
        ["consumers", count(queue.consumers)],
        ["deliveries at most", queue.maximum_deliveries],
        ["dead letters", dead || "are discarded"],
        ["priorities", queue.has_priorities ? "yes" : null],
      ]),
    );
  }

  // The actions that an operator may take on the queue.
  async offer() {
    if (!this.place.may("operator")) {
      return;
    }
    const mine = this.name;
    const { items } = await this.place.api.list("/queues", MOST).catch(() => ({ items: [] }));
    if (mine !== this.name) {
      return;
    }
    const others = items.filter((queue) => queue.name !== this.name).map((queue) => make("option", {}, queue.name));
    const to = make("select", { "aria-label": "Move to" }, ...others);
    const path = `/queues/${encodeURIComponent(this.name)}`;
    const { api } = this.place;
    const moved = ({ messages, left, is_refused: isFull }) =>
      `${count(messages)} moved to ${to.value}, ${count(left)} left${isFull ? ": the other queue is full" : ""}`;
    const move = make("button", { type: "button" }, "Move all");
    move.addEventListener("click", () => this.change(moved, () => api.admin("POST", `${path}/move`, { to: to.value })));
    const purged = ({ messages, left }) => `${count(messages)} removed, ${count(left)} left`;
    const purge = twice(
      "Purge",
      "Really remove all?",
      () => this.change(purged, () => api.admin("DELETE", `${path}/messages`)),
      { class: "danger" },
    );
    const again = make("button", { type: "button" }, "Look again");
    again.addEventListener("click", () => this.peek());
    const moving = others.length ? make("span", { class: "joined" }, move, make("span", {}, "to"), to) : null;
    $("queue-tools").replaceChildren(...[moving, purge, again].filter(Boolean));
    $("queue-tools").hidden = false;
  }

  async change(done, doing) {
    await this.place.change(this.output, done, doing);
    this.peek();
  }

  // The messages at the front; nothing is taken.
  async peek() {
    const list = $("queue-messages");
    if (!this.place.may("operator")) {
      list.replaceChildren(make("li", { class: "faint" }, "Looking at messages needs the role operator."));
      return;
    }
    const mine = this.name;
    try {
      const { items, hasMore } = await this.place.api.list(`/queues/${encodeURIComponent(mine)}/messages`, PEEKED);
      if (mine !== this.name) {
        return;
      }
      const more = hasMore ? make("li", { class: "faint" }, `These are the first ${PEEKED}.`) : "";
      const none = make("li", { class: "faint" }, "Nothing waits.");
      list.replaceChildren(...(items.length ? items.map(peeked) : [none]), more);
    } catch (error) {
      list.replaceChildren(make("li", { class: "problem" }, error.message));
    }
  }
}

function peeked(message) {
  const [text, kind] = preview(message);
  const marks = make("span", { class: "marks" }, make("span", {}, `QoS ${message.qos}`));
  if (message.failures) {
    marks.append(make("span", {}, `failed ${message.failures} times`));
  }
  const head = make(
    "summary",
    {},
    make("time", { datetime: new Date(message.published_ms).toISOString() }, clock(message.published_ms)),
    make("span", { class: "topic" }, message.topic),
    make("span", { class: `payload ${kind}` }, text),
    marks,
  );
  return make("li", {}, make("details", {}, head, make("pre", {}, whole(message))));
}

// The tab of topics: those with a retained message, as a tree, and who reads them.

import { words } from "./api.js";
import { $, make, silent, twice } from "./dom.js";
import { clock, count, day, preview, whole } from "./figures.js";

const MOST = 2_000;
// Readers of a topic that are shown.
const READERS = 50;
// The most topics that are shown unfolded.
const UNFOLDED = 40;

// A level of the tree: what is below it by name, and its own message.
function grow(messages) {
  const root = { below: new Map(), message: null, size: 0 };
  for (const message of messages) {
    let node = root;
    node.size += 1;
    for (const level of message.topic.split("/")) {
      if (!node.below.has(level)) {
        node.below.set(level, { below: new Map(), message: null, size: 0 });
      }
      node = node.below.get(level);
      node.size += 1;
    }
    node.message = message;
  }
  return root;
}

export class Topics {
  constructor(place) {
    this.place = place;
    $("topics-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.read();
    });
  }

  show() {
    const isBarred = this.place.bars($("topics-notice"), "operator");
    $("topics-tools").hidden = isBarred;
    if (!isBarred) {
      this.read();
    }
  }

  hide() {}

  async read() {
    const filter = $("topics-filter").value || "#";
    const tree = $("topics-tree");
    try {
      const { items, hasMore } = await this.place.api.list(`/retained?filter=${encodeURIComponent(filter)}`, MOST);
      $("topics-notice").replaceChildren();
      const text = `${count(items.length)} retained message${items.length === 1 ? "" : "s"}`;
      $("topics-count").textContent = hasMore ? `the first ${text}; give a narrower filter` : text;
      const none = make("li", { class: "faint" }, "No topic that matches has a retained message.");
      const isOpen = items.length <= UNFOLDED;
      tree.replaceChildren(...(items.length ? this.branches(grow(items), isOpen) : [none]));
    } catch (error) {
      $("topics-notice").replaceChildren(words(error));
    }
  }

  branches(node, isOpen) {
    const names = [...node.below].sort(([one], [other]) => one.localeCompare(other, "en", { numeric: true }));
    return names.map(([name, child]) => this.branch(name, child, isOpen));
  }

  branch(name, node, isOpen) {
    const { message } = node;
    const label = make("span", { class: "level" }, name === "" ? "(empty level)" : name);
    const [text, kind] = message ? preview(message) : [`${count(node.size)} below`, "none"];
    const value = make("span", { class: `payload ${kind}` }, text);
    const details = make("details", { open: isOpen && node.below.size > 0 }, make("summary", {}, label, value));
    let isFilled = false;
    const fill = () => {
      if (!isFilled) {
        isFilled = true;
        details.append(...(message ? this.leaf(message, details) : []));
        if (node.below.size) {
          details.append(make("ul", { class: "tree" }, ...this.branches(node, isOpen)));
        }
      }
    };
    // Folded content is made when it is opened.
    if (details.open) {
      fill();
    } else {
      details.addEventListener("toggle", fill, { once: true });
    }
    return make("li", {}, details);
  }

  // A message, and what may be done with it.
  leaf(message, details) {
    const output = make("output", { role: "status" });
    const { api } = this.place;
    const doing = async () => {
      const path = `/retained/${encodeURIComponent(message.topic)}`;
      if (await this.place.change(output, "deleted", () => api.admin("DELETE", path))) {
        details.querySelector("summary .payload").textContent = "deleted";
      }
    };
    const remove = twice("Delete", "Really delete it?", doing, { class: "danger" });
    const readers = make("ul", { class: "plain" });
    const asking = make("button", { type: "button" }, "Who reads it?");
    asking.addEventListener("click", () => this.readers(message.topic, readers));
    const at = message.published_ms;
    const about = make("p", { class: "faint" }, `QoS ${message.qos}, of ${day(at)} ${clock(at)}, ${count(message.payload_bytes)} bytes`);
    return [make("pre", {}, whole(message)), make("div", { class: "tools" }, about, asking, remove), output, readers];
  }

  // The subscriptions that get messages of a topic, also of clients that are away.
  async readers(topic, list) {
    try {
      const path = `/subscriptions?topic=${encodeURIComponent(topic)}`;
      const { items, hasMore, unanswered } = await this.place.api.list(path, READERS);
      const at = (one) => (one.node ? ` at ${one.node}` : "");
      const rows = items.map((one) => make("li", {}, one.session, " by ", make("code", {}, one.filter), ` QoS ${one.qos}${at(one)}`));
      const none = make("li", { class: "faint" }, "Nobody reads it.");
      list.replaceChildren(silent(unanswered, "li"), ...(rows.length ? rows : [none]), hasMore ? make("li", {}, "and more") : "");
    } catch (error) {
      list.replaceChildren(make("li", { class: "faint" }, words(error)));
    }
  }
}

// The tab of rules: those in force, and which of them decides about an action.

import { words } from "./api.js";
import { $, make } from "./dom.js";

const DECISIONS = {
  allowed: "Allowed",
  allowed_in_part: "Allowed in part",
  asked: "The webhook decides",
  refused: "Refused",
};

function names(list, all) {
  return list?.length ? list.join(", ") : all;
}

// The clients that a rule is about.
function whom(rule) {
  const parts = [];
  if (rule.users?.length) {
    parts.push(rule.users.includes("*") ? "everybody with a name" : `user ${rule.users.join(", ")}`);
  }
  if (rule.groups?.length) {
    parts.push(`group ${rule.groups.join(", ")}`);
  }
  const who = parts.join(" or ") || "everybody";
  return rule.clients?.length ? `${who} as client ${rule.clients.join(", ")}` : who;
}

export class Rules {
  constructor(place) {
    this.place = place;
    this.rules = null;
    $("explain-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.explain();
    });
  }

  async show() {
    const isBarred = this.place.bars($("rules-notice"), "viewer");
    $("rules-tools").hidden = isBarred;
    if (isBarred) {
      return;
    }
    try {
      this.rules = await this.place.api.admin("GET", "/rules");
      this.draw();
    } catch (error) {
      $("rules-notice").replaceChildren(words(error));
    }
  }

  hide() {}

  draw() {
    const { rules, admins, groups, default_allow: isAllowed } = this.rules;
    const items = rules.map((rule, at) => {
      const actions = names(rule.actions, rule.effect === "deny" ? "everything" : "publish, subscribe");
      return make(
        "li",
        { "data-rule": at + 1 },
        make("span", { class: `effect ${rule.effect}` }, rule.effect),
        make("span", {}, `${actions} for ${whom(rule)}`),
        make("code", {}, names(rule.topics, "no topic")),
      );
    });
    const rest = make(
      "li",
      { "data-rule": "default" },
      make("span", { class: `effect ${isAllowed ? "allow" : "deny"}` }, isAllowed ? "allow" : "deny"),
      make("span", {}, "what no rule matches"),
    );
    $("rules-list").replaceChildren(...items, rest);
    const lines = groups.map((group) => `Group ${group.name}: ${names(group.users, "nobody")}`);
    lines.push(`Administrators: ${names(admins, "nobody")}`);
    $("rules-people").replaceChildren(...lines.map((line) => make("li", {}, line)));
  }

  async explain() {
    const parameters = new URLSearchParams({ action: $("explain-action").value, topic: $("explain-topic").value });
    for (const [name, id] of [["user", "explain-user"], ["client", "explain-client"]]) {
      if (document.getElementById(id).value) {
        parameters.set(name, document.getElementById(id).value);
      }
    }
    const output = $("explain-result");
    output.textContent = "";
    this.point([]);
    try {
      const told = await this.place.api.admin("GET", `/rules/explain?${parameters}`);
      output.dataset.state = told.decision === "refused" ? "bad" : "good";
      const parts = [`${DECISIONS[told.decision]}: ${this.reason(told.reason)}.`];
      parts.push(...told.denied_in_part.map((reason) => ` Some of its topics are refused: ${this.reason(reason)}.`));
      if (told.groups.length) {
        parts.push(` Groups of the user: ${told.groups.join(", ")}.`);
      }
      if (told.depends_on.length) {
        parts.push(` It also depends on ${told.depends_on.join(", ").replaceAll("_", " ")}: this is the best case for the client.`);
      }
      output.textContent = parts.join("");
      this.point([told.reason, ...told.denied_in_part]);
    } catch (error) {
      output.dataset.state = "bad";
      output.textContent = words(error);
    }
  }

  reason({ by, rule }) {
    const says = {
      rule: `rule ${rule} decides`,
      administrators: "the broker's own rule about administrators",
      default: "no rule matches",
      server: "topics below $SYS/ are the broker's",
      nothing: "no rule gives this right",
    };
    return says[by] ?? by;
  }

  // Shows in the list which rules those are.
  point(reasons) {
    const wanted = reasons.map(({ by, rule }) => (by === "rule" ? String(rule) : by));
    for (const item of $("rules-list").children) {
      if (wanted.includes(item.dataset.rule)) {
        item.setAttribute("aria-current", "true");
      } else {
        item.removeAttribute("aria-current");
      }
    }
  }
}

// Where the page is, and who looks at it: whether there is an admin API, and the role there.

import { words } from "./api.js";
import { $, button, make } from "./dom.js";

const RANKS = ["viewer", "operator", "admin"];

export class Place {
  constructor(api) {
    this.api = api;
    // Whether this listener has the admin API; null until that is known.
    this.isAdmin = null;
    this.role = null;
    this.user = null;
    // Why there is no role.
    this.trouble = null;
    this.listeners = [];
    this.openCredentials = () => {};
  }

  // Finds out what is here, and who one is.
  async look() {
    [this.role, this.user, this.trouble] = [null, null, null];
    try {
      if (this.isAdmin === null) {
        const response = await this.api.request("HEAD", "admin/v1/openapi.json").catch((error) => {
          if (error.status === 404) {
            return null;
          }
          throw error;
        });
        this.isAdmin = response !== null;
      }
      if (this.isAdmin) {
        const me = await this.api.admin("GET", "/me");
        [this.role, this.user] = [me.role, me.user];
        this.listeners = (await this.api.admin("GET", "/node")).listeners;
      }
    } catch (error) {
      this.trouble = error;
    }
  }

  // Whether who looks has at least this role.
  may(role) {
    return RANKS.indexOf(this.role) >= RANKS.indexOf(role);
  }

  // Shows in a tab what stands in the way of it; true where something does.
  bars(notice, role) {
    notice.replaceChildren();
    if (this.isAdmin && this.may(role)) {
      return false;
    }
    if (this.isAdmin === false) {
      notice.append(
        make("strong", {}, "This listener has messages only. "),
        "Clients, queues and the rest are on the admin listener: by default ",
        make("code", {}, "localhost:9464"),
        " on the broker's own host.",
      );
    } else if (this.trouble) {
      notice.append(words(this.trouble), " ");
      if (this.trouble.status === 401 || this.trouble.status === 403) {
        notice.append(button("Log in", () => this.openCredentials(), { class: "primary" }));
      }
    } else {
      const who = this.user ?? "Who is not logged in";
      notice.append(
        `This needs the role ${role}. ${who} has the role ${this.role}. The configuration names those who have more: `,
        make("code", {}, role === "admin" ? "authorization.admins" : "admin.operators"),
        "; ",
        make("code", {}, "anonymous"),
        " there is everybody on this host. ",
      );
      notice.append(button("Log in", () => this.openCredentials(), { class: "primary" }));
    }
    return true;
  }

  // Does a change, and says in an element what came of it; true if it was done.
  async change(output, done, doing) {
    try {
      const answer = await doing();
      output.dataset.state = "good";
      output.textContent = typeof done === "function" ? done(answer) : done;
      return true;
    } catch (error) {
      output.dataset.state = "bad";
      output.textContent = words(error);
      if (error.status === 401) {
        this.openCredentials();
      }
      return false;
    }
  }

  // How a tab tells how its reading goes.
  teller(notice) {
    return (state, text, status) => {
      notice.replaceChildren(text && state !== "open" ? text : "");
      notice.dataset.state = state;
      if (status === 401) {
        this.openCredentials();
      }
    };
  }
}

// ---------------------------------------------------------------- credentials

// The dialog for credentials; `changed(label)` is called when others are used.
export function credentials(place, changed) {
  const kind = () => new FormData($("credentials-form")).get("kind");
  const showKind = () => {
    for (const part of document.querySelectorAll("[data-kind]")) {
      part.hidden = part.dataset.kind !== kind();
      for (const field of part.querySelectorAll("input")) {
        field.required = !part.hidden && field.id !== "password";
      }
    }
  };
  place.openCredentials = () => {
    if (!$("credentials").open) {
      showKind();
      $("credentials").showModal();
    }
  };
  $("credentials-open").addEventListener("click", place.openCredentials);
  $("credentials-cancel").addEventListener("click", () => $("credentials").close());
  $("credentials-form").addEventListener("change", showKind);
  $("credentials-form").addEventListener("submit", () => {
    const { api } = place;
    const uses = {
      none: () => [api.useNothing(), null],
      basic: () => [api.useBasic($("user").value, $("password").value), $("user").value],
      bearer: () => [api.useToken($("token").value.trim()), "token"],
      certificate: () => [api.useCertificate(), "certificate"],
    };
    changed(uses[kind()]()[1]);
  });
}

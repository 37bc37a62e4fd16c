// The page: its tabs, who looks at it, and light and dark.

import { Api } from "./api.js";
import { Clients } from "./clients.js";
import { $ } from "./dom.js";
import { Log } from "./log.js";
import { Messages } from "./messages.js";
import { Place, credentials } from "./place.js";
import { Queues } from "./queues.js";
import { Rules } from "./rules.js";
import { Store } from "./store.js";
import { Tabs } from "./tabs.js";
import { Topics } from "./topics.js";

const THEMES = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
const AGAIN_MS = 3_000;

const place = new Place(new Api(document.baseURI));
const messages = new Messages(place);
const tabs = new Tabs($("tabs"), {
  messages,
  clients: new Clients(place),
  queues: new Queues(place),
  topics: new Topics(place),
  rules: new Rules(place),
  store: new Store(place),
  log: new Log(place),
});

// ---------------------------------------------------------------- who looks

let label = null;

async function look() {
  await place.look();
  const name = place.user ?? label;
  const role = place.role ? ` (${place.role})` : "";
  $("credentials-open").textContent = name ? `${name}${role}` : `Log in${role}`;
  $("description-link").href = place.isAdmin ? "admin/v1/openapi.json" : "v1/openapi.json";
  if (place.isAdmin === null || (place.trouble && !place.trouble.status)) {
    // The broker cannot be reached yet.
    setTimeout(() => look().then(() => tabs.follow()), AGAIN_MS);
  }
}

credentials(place, async (used) => {
  label = used;
  await look();
  messages.renew();
  tabs.follow();
});

// ---------------------------------------------------------------- light and dark

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = THEMES[theme];
}

function storedTheme() {
  try {
    const stored = localStorage.getItem("theme");
    return THEMES[stored] ? stored : "auto";
  } catch {
    return "auto";
  }
}

$("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  try {
    localStorage.setItem("theme", next);
  } catch {
    // Without storage it lasts until the page is closed.
  }
  showTheme(next);
});
showTheme(storedTheme());

await look();
tabs.follow();

// The page: forms, the list of messages, and what ties them to the interface and the chart.

import { Chart } from "./chart.js";
import { Api, Subscription } from "./stream.js";

// Rows that are kept in the list, and messages that wait to be shown.
const ROWS = 300;
const BACKLOG = 1_000;
const PREVIEW_CHARACTERS = 300;
const DETAIL_CHARACTERS = 20_000;
const THEMES = ["auto", "light", "dark"];

const $ = (id) => document.getElementById(id);
const api = new Api(document.baseURI);
const chart = new Chart($("chart"), $("legend"));

let subscription = null;
let backlog = [];
let received = 0;
let paused = false;
let drawing = false;

// ---------------------------------------------------------------- subscribing

function showState(state, text) {
  $("state").dataset.state = state;
  $("state-text").textContent = text;
}

// The version of HTTP that a response came by, as the browser tells it.
function protocol(response) {
  const entries = performance.getEntriesByName(response.url);
  const name = entries.at(-1)?.nextHopProtocol ?? performance.getEntriesByType("navigation")[0]?.nextHopProtocol;
  return { h3: "HTTP/3", h2: "HTTP/2", "http/1.1": "HTTP/1.1" }[name] ?? name ?? "";
}

function showSubscribed(on) {
  const button = $("subscribe-button");
  button.textContent = on ? "Stop" : "Subscribe";
  button.toggleAttribute("data-on", on);
  for (const id of ["filter", "subscribe-qos", "retained"]) {
    $(id).disabled = on;
  }
}

function stop() {
  subscription?.stop();
  subscription = null;
  showSubscribed(false);
}

function start() {
  const filter = $("filter").value;
  const mine = new Subscription(
    api,
    { filter, qos: $("subscribe-qos").value, retained: $("retained").checked },
    {
      state(state, text, about) {
        if (mine !== subscription) {
          return;
        }
        if (state === "open") {
          const by = protocol(about);
          showState("open", `subscribed to ${filter}${by ? ` over ${by}` : ""}`);
          return;
        }
        showState(state, text);
        if (state === "failed") {
          stop();
          if (about === 401) {
            openCredentials();
          }
        }
      },
      message(message) {
        if (mine === subscription) {
          arrived(message);
        }
      },
      gap() {
        backlog.push({ gap: true, at: Date.now() });
        draw();
      },
    },
  );
  subscription = mine;
  showSubscribed(true);
  mine.run();
}

$("subscribe-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (subscription) {
    stop();
    showState("idle", "not subscribed");
  } else {
    start();
  }
});

// ---------------------------------------------------------------- messages

function arrived(message) {
  const at = Date.now();
  received += 1;
  chart.add(message.topic, message.payload, at);
  backlog.push({ message, at });
  if (backlog.length > BACKLOG) {
    backlog.splice(0, backlog.length - BACKLOG);
  }
  draw();
}

function draw() {
  if (drawing) {
    return;
  }
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const held = paused && backlog.length ? `, ${backlog.length} held` : "";
    $("count").textContent = received ? `${received.toLocaleString()} received${held}` : "";
    if (paused) {
      return;
    }
    const list = $("messages");
    const rows = backlog.slice(-ROWS).map((entry) => (entry.gap ? gapRow() : row(entry)));
    backlog = [];
    list.prepend(...rows.reverse());
    while (list.childElementCount > ROWS) {
      list.lastElementChild.remove();
    }
  });
}

function gapRow() {
  const item = document.createElement("li");
  item.className = "problem";
  item.textContent = "The session was gone when the page came back; messages may be missing here.";
  return item;
}

function bytesOf(encoded) {
  return Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
}

function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length)} …` : text;
}

function row({ message, at }) {
  const item = $("message-row").content.firstElementChild.cloneNode(true);
  const when = new Date(at);
  const time = item.querySelector("time");
  time.dateTime = when.toISOString();
  time.textContent = when.toLocaleTimeString([], { hour12: false });
  item.querySelector(".topic").textContent = message.topic;
  item.querySelector(".topic").title = message.topic;
  const payload = item.querySelector(".payload");
  const bytes = message.payload_base64 === undefined ? null : bytesOf(message.payload_base64);
  if (bytes) {
    payload.textContent = `${bytes.length} bytes  ${cut(hex(bytes.subarray(0, 48)), PREVIEW_CHARACTERS)}`;
    payload.classList.add("bytes");
  } else if (message.payload === "") {
    payload.textContent = "empty";
    payload.classList.add("none");
  } else {
    payload.textContent = cut(message.payload.replace(/\s+/g, " "), PREVIEW_CHARACTERS);
  }
  const marks = [`QoS ${message.qos}`, message.retain && "retained", message.redelivered && "again"];
  for (const mark of marks.filter(Boolean)) {
    const shown = document.createElement("span");
    shown.textContent = mark;
    item.querySelector(".marks").append(shown);
  }
  // What is folded is filled in when it is opened.
  const details = item.querySelector("details");
  details.addEventListener("toggle", () => fill(details, message, bytes), { once: true });
  return item;
}

function fill(details, message, bytes) {
  let text = bytes ? hex(bytes.subarray(0, DETAIL_CHARACTERS / 3)) : message.payload;
  if (!bytes && /^\s*[[{]/.test(text)) {
    try {
      text = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // It only looks like JSON.
    }
  }
  details.querySelector("pre").textContent = cut(text, DETAIL_CHARACTERS) || "(empty)";
  const list = details.querySelector("dl");
  const rows = [
    ["id", message.id],
    ["content type", message.content_type],
    ["payload format", message.payload_format],
    ["expires after", message.expiry_s === undefined ? undefined : `${message.expiry_s} s`],
    ["response topic", message.response_topic],
    ["correlation data", message.correlation_data && hex(bytesOf(message.correlation_data))],
    ...(message.user_properties ?? []),
  ];
  for (const [name, value] of rows) {
    if (value !== undefined) {
      const term = document.createElement("dt");
      const said = document.createElement("dd");
      term.textContent = name;
      said.textContent = value;
      list.append(term, said);
    }
  }
}

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause";
  draw();
});

$("clear").addEventListener("click", () => {
  backlog = [];
  received = 0;
  $("messages").replaceChildren();
  chart.clear();
  draw();
});

$("chart-window").addEventListener("change", () => {
  chart.windowS = Number($("chart-window").value);
  chart.soon(0);
});

// ---------------------------------------------------------------- publishing

$("publish-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const result = $("publish-result");
  const button = $("publish-button");
  const topic = $("topic").value;
  button.disabled = true;
  result.textContent = "";
  const began = performance.now();
  try {
    await api.publish(topic, new TextEncoder().encode($("payload").value), {
      qos: $("publish-qos").value,
      retain: $("retain").checked,
      contentType: $("content-type").value.trim(),
      expiryS: $("expiry").value === "" ? null : Number($("expiry").value),
    });
    result.dataset.state = "good";
    result.textContent = `published to ${topic} in ${(performance.now() - began).toFixed(0)} ms`;
  } catch (error) {
    result.dataset.state = "bad";
    result.textContent = error.status ? `${error.status}: ${error.message}` : `not sent: ${error.message}`;
    if (error.status === 401) {
      openCredentials();
    }
  } finally {
    button.disabled = false;
  }
});

// ---------------------------------------------------------------- credentials

function kind() {
  return new FormData($("credentials-form")).get("kind");
}

function showKind() {
  for (const part of document.querySelectorAll("[data-kind]")) {
    part.hidden = part.dataset.kind !== kind();
    for (const field of part.querySelectorAll("input")) {
      field.required = !part.hidden && field.id !== "password";
    }
  }
}

function openCredentials() {
  if (!$("credentials").open) {
    showKind();
    $("credentials").showModal();
  }
}

$("credentials-open").addEventListener("click", openCredentials);
$("credentials-cancel").addEventListener("click", () => $("credentials").close());
$("credentials-form").addEventListener("change", showKind);
$("credentials-form").addEventListener("submit", () => {
  const uses = {
    none: () => [api.useNothing(), "anonymous"],
    basic: () => [api.useBasic($("user").value, $("password").value), $("user").value],
    bearer: () => [api.useToken($("token").value.trim()), "token"],
    certificate: () => [api.useCertificate(), "certificate"],
  };
  $("credentials-open").textContent = uses[kind()]()[1];
  if (subscription) {
    // Sessions belong to who made them: with other credentials another one begins.
    stop();
    start();
  }
});

// ---------------------------------------------------------------- light and dark

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme;
}

function storedTheme() {
  try {
    return localStorage.getItem("theme") ?? "auto";
  } catch {
    return "auto";
  }
}

$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(storedTheme()) + 1) % THEMES.length];
  try {
    localStorage.setItem("theme", next);
  } catch {
    // Without storage it lasts until the page is closed.
  }
  showTheme(next);
});
showTheme(storedTheme());

// Numbers, times and payloads as people read them.

const PREVIEW_CHARACTERS = 300;
const DETAIL_CHARACTERS = 20_000;

export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en");
}

export function bytes(number) {
  if (number === null || number === undefined) {
    return "–";
  }
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  let value = number;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

// Microseconds; 0 is unknown.
export function milliseconds(us) {
  if (!us) {
    return "–";
  }
  const ms = us / 1000;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 1 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

// Lost packets, and their share where the transport counts what it has sent.
export function loss(path) {
  const share = path.sent_datagrams ? (100 * path.lost_packets) / path.sent_datagrams : 0;
  return path.lost_packets && share ? `${count(path.lost_packets)} (${share.toFixed(share < 10 ? 1 : 0)} %)` : count(path.lost_packets);
}

// The name of a connection.
export function called(client) {
  return client.name ?? client.user ?? (client.protocol === "http" ? "(anonymous)" : "(before login)");
}

export function transport(client) {
  const version = client.version ? ` ${client.version}` : "";
  const over = { websocket: "WebSocket", securewebsocket: "WebSocket, TLS" }[client.transport] ?? client.transport.toUpperCase();
  return `${client.protocol.toUpperCase()}${version} · ${over}`;
}

export function duration(seconds) {
  const parts = [
    [Math.floor(seconds / 86_400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [Math.floor(seconds) % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  return first < 0 ? "0 s" : parts.slice(first, first + 2).map(([value, unit]) => `${value} ${unit}`).join(" ");
}

export function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour12: false });
}

export function day(at) {
  return new Date(at).toISOString().slice(0, 10);
}

export function bytesOf(encoded) {
  return Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
}

export function hex(content) {
  return Array.from(content, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

export function cut(text, length) {
  return text.length > length ? `${text.slice(0, length)} …` : text;
}

// A payload in one line, and what kind it is: `text`, `bytes` or `none`.
export function preview(message) {
  if (message.payload_base64 !== undefined) {
    const content = bytesOf(message.payload_base64);
    const length = message.payload_bytes ?? content.length;
    return [`${length} bytes  ${cut(hex(content.subarray(0, 48)), PREVIEW_CHARACTERS)}`, "bytes"];
  }
  if (!message.payload) {
    return ["empty", "none"];
  }
  return [cut(message.payload.replace(/\s+/g, " "), PREVIEW_CHARACTERS), "text"];
}

// The same at length; JSON is laid out.
export function whole(message) {
  if (message.payload_base64 !== undefined) {
    return cut(hex(bytesOf(message.payload_base64).subarray(0, DETAIL_CHARACTERS / 3)), DETAIL_CHARACTERS);
  }
  let text = message.payload ?? "";
  if (/^\s*[[{]/.test(text)) {
    try {
      text = JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      // It only looks like JSON.
    }
  }
  return cut(text, DETAIL_CHARACTERS) || "(empty)";
}

// Numbers over time, as SVG: small charts below each other, each with an axis of its own, for numbers that are of one
// kind. Drawn anew at most a few times a second, coloured by the style sheet.

import { draw, make } from "./dom.js";
import { clock } from "./figures.js";

// Limits on what is kept, whatever arrives.
const SERIES = 8;
const POINTS = 2_000;
const DRAW_MS = 200;
const LEFT = 56;
const RIGHT = 12;
const TITLE = 20;
const BOTTOM = 22;
// Height of one chart alone, of two, and of more.
const HEIGHTS = [216, 136, 104];
// A point that the pointer is further from, in pixels, is not what it shows.
const NEAR = 40;
const CHARACTER = 6.5;

// The numbers in a payload: itself, or the members of a JSON object, two levels deep.
export function numbers(payload) {
  if (payload === undefined || payload.length > 10_000) {
    return [];
  }
  const text = payload.trim();
  if (text && !/^0x/i.test(text) && Number.isFinite(Number(text))) {
    return [["", Number(text)]];
  }
  if (!text.startsWith("{")) {
    return [];
  }
  try {
    const found = [];
    const walk = (value, name, depth) => {
      for (const [key, inner] of Object.entries(value)) {
        const path = name ? `${name}.${key}` : key;
        if (typeof inner === "number") {
          found.push([path, inner]);
        } else if (inner && typeof inner === "object" && !Array.isArray(inner) && depth < 2) {
          walk(inner, path, depth + 1);
        }
      }
    };
    walk(JSON.parse(text), "", 1);
    return found;
  } catch {
    return [];
  }
}

// At most `count` round values from `low` to `high`, `least` apart.
function ticks(low, high, count, least) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10));
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) {
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return [found, step];
}

function shown(value, step) {
  if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) {
    return value.toExponential(1);
  }
  return value.toFixed(Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))));
}

function brief(value) {
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6)));
}

export class Chart {
  // `empty` is the text of a chart without numbers.
  constructor(place, legend, empty, label) {
    this.place = place;
    this.legend = legend;
    this.series = new Map();
    this.left = new Set();
    this.marks = [];
    this.windowS = 600;
    this.pointer = null;
    this.timer = null;
    this.svg = draw("svg", { role: "img", "aria-label": label });
    this.empty = make("p", { class: "empty faint" }, empty);
    place.append(this.svg, this.empty);
    this.observer = new ResizeObserver(() => this.soon());
    this.observer.observe(place);
    place.addEventListener("pointermove", (event) => {
      this.pointer = event.clientX - place.getBoundingClientRect().left;
      this.soon(0);
    });
    place.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.soon(0);
    });
    // Time goes on when nothing comes.
    this.interval = setInterval(() => this.series.size && this.soon(), 1000);
    this.draw();
  }

  // It is not drawn any more.
  end() {
    clearInterval(this.interval);
    clearTimeout(this.timer);
    this.observer.disconnect();
  }

  // A message: what stands in the same place of payloads, or in the same last level of topics, is of one kind.
  add(topic, payload, at) {
    for (const [member, value] of numbers(payload)) {
      this.put(member || topic.split("/").at(-1) || topic, member ? `${topic} ${member}` : topic, value, at);
    }
  }

  // A number of a kind.
  put(kind, name, value, at) {
    let one = this.series.get(name);
    if (!one) {
      if (this.series.size >= SERIES) {
        if (this.left.size < 1_000) {
          this.left.add(name);
        }
        return;
      }
      const used = new Set(Array.from(this.series.values(), (each) => each.colour));
      const colour = [...Array(SERIES).keys()].find((index) => !used.has(index));
      one = { name, kind, colour, points: [], visible: true };
      this.series.set(name, one);
      this.entry(one);
    }
    one.points.push([at, value]);
    if (one.points.length > POINTS) {
      one.points.splice(0, one.points.length - POINTS);
    }
    one.value.textContent = brief(value);
    this.soon();
  }

  // Something that happened at a time.
  mark(at) {
    this.marks = [...this.marks.slice(-99), at];
    this.soon();
  }

  entry(one) {
    one.value = make("b");
    const attributes = { type: "button", class: `series-${one.colour}`, "aria-pressed": "true", title: one.name };
    const button = make("button", attributes, make("i"), make("span", {}, one.name), one.value);
    button.addEventListener("click", () => {
      one.visible = !one.visible;
      button.setAttribute("aria-pressed", String(one.visible));
      this.soon(0);
    });
    this.legend.append(make("li", {}, button));
  }

  clear() {
    this.series.clear();
    this.left.clear();
    this.marks = [];
    this.legend.replaceChildren();
    this.soon(0);
  }

  soon(delay = DRAW_MS) {
    if (delay === 0) {
      clearTimeout(this.timer);
      this.timer = null;
      requestAnimationFrame(() => this.draw());
    } else {
      this.timer ??= setTimeout(() => {
        this.timer = null;
        requestAnimationFrame(() => this.draw());
      }, delay);
    }
  }

  // The series in the window of time, by kind.
  seen(begin) {
    const kinds = new Map();
    for (const one of this.series.values()) {
      // The last point before the window, too: a line comes in from the left.
      const first = one.points.findIndex(([at]) => at >= begin);
      const points = first < 0 ? [] : one.points.slice(Math.max(0, first - 1));
      if (one.visible && points.length) {
        kinds.set(one.kind, [...(kinds.get(one.kind) ?? []), { one, points }]);
      }
    }
    return [...kinds];
  }

  draw() {
    // Where nothing is drawn yet, the chart may have no room at all.
    this.empty.hidden = this.series.size > 0;
    const { width } = this.place.getBoundingClientRect();
    if (!width) {
      return;
    }
    const end = Date.now();
    const begin = end - this.windowS * 1000;
    const kinds = this.seen(begin);
    const each = HEIGHTS[Math.min(kinds.length, HEIGHTS.length) - 1] ?? 0;
    const height = kinds.length * each + (kinds.length ? BOTTOM : 0);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    if (!kinds.length) {
      this.svg.replaceChildren();
      return;
    }
    // The points of the first seconds fill the width.
    const all = kinds.flatMap(([, lines]) => lines);
    const oldest = Math.min(...all.map(({ points }) => points[0][0]));
    const start = Math.max(begin, Math.min(oldest, end - 10_000));
    const [left, right] = [LEFT, width - RIGHT];
    const x = (at) => left + ((at - start) / (end - start)) * (right - left);
    const clip = draw("clipPath", { id: `${this.place.id}-frame` });
    clip.append(draw("rect", { x: left, y: 0, width: right - left + 4, height }));
    const parts = [clip];
    for (const [at, [kind, lines]] of kinds.entries()) {
      const frame = { left, right, top: at * each + TITLE, bottom: (at + 1) * each - 10 };
      this.panel(parts, kind, lines, frame, x, [start, end]);
    }
    this.times(parts, { left, right, bottom: height - BOTTOM }, x, [start, end]);
    if (this.left.size) {
      const text = `and ${this.left.size} more that are not drawn`;
      parts.push(draw("text", { x: right, y: 13, "text-anchor": "end" }, text));
    }
    this.svg.replaceChildren(...parts);
  }

  // The chart of one kind.
  panel(parts, kind, lines, frame, x, [start, end]) {
    const most = Math.floor((frame.right - frame.left) / 2 / CHARACTER);
    const title = kind.length > most ? `${kind.slice(0, most)} …` : kind;
    parts.push(draw("text", { x: frame.left, y: frame.top - 7, class: "kind" }, title));
    const values = lines.flatMap(({ points }) => points.map(([, value]) => value));
    let low = values.reduce((least, value) => Math.min(least, value));
    let high = values.reduce((greatest, value) => Math.max(greatest, value));
    const isWhole = values.every(Number.isInteger);
    const flat = isWhole ? 1 / 0.08 : Math.abs(high) || 1;
    const margin = (high - low || flat) * 0.08;
    [low, high] = [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
    const y = (value) => frame.bottom - ((value - low) / (high - low)) * (frame.bottom - frame.top);
    const [rows, step] = ticks(low, high, 5, isWhole ? 1 : 0);
    for (const value of rows) {
      const at = y(value);
      parts.push(draw("line", { x1: frame.left, x2: frame.right, y1: at, y2: at, class: "grid" }));
      parts.push(draw("text", { x: frame.left - 8, y: at + 4, "text-anchor": "end" }, shown(value, step)));
    }
    for (const at of this.marks.filter((mark) => mark >= start)) {
      parts.push(draw("line", { x1: x(at), x2: x(at), y1: frame.top, y2: frame.bottom, class: "mark" }));
    }
    const drawn = draw("g", { "clip-path": `url(#${this.place.id}-frame)` });
    for (const { one, points } of lines) {
      const line = points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      drawn.append(draw("polyline", { points: line, class: `series-${one.colour}` }));
      const [at, value] = points[points.length - 1];
      drawn.append(draw("circle", { cx: x(at), cy: y(value), r: 3.5, class: `series-${one.colour}` }));
    }
    parts.push(drawn);
    if (this.pointer !== null && this.pointer >= frame.left && this.pointer <= frame.right) {
      const share = (this.pointer - frame.left) / (frame.right - frame.left);
      this.readout(parts, frame, lines, x, y, start + share * (end - start));
    }
  }

  times(parts, { left, right, bottom }, x, [start, end]) {
    const most = Math.max(2, Math.floor((right - left) / 130));
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];
    const every = (steps.find((each) => (end - start) / 1000 / each <= most) ?? 3600) * 1000;
    for (let at = Math.ceil(start / every) * every; at <= end; at += every) {
      const place = x(at);
      if (place > left + 28 && place < right - 28) {
        parts.push(draw("text", { x: place, y: bottom + 14, "text-anchor": "middle" }, clock(at)));
      }
    }
  }

  // The value of each line at the pointer.
  readout(parts, frame, lines, x, y, at) {
    const place = x(at);
    parts.push(draw("line", { x1: place, x2: place, y1: frame.top, y2: frame.bottom, class: "cursor" }));
    const text = draw("text", { x: frame.right, y: frame.top - 7, "text-anchor": "end" }, clock(at));
    for (const { one, points } of lines) {
      const found = points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
      if (Math.abs(x(found[0]) - place) < NEAR) {
        parts.push(draw("circle", { cx: x(found[0]), cy: y(found[1]), r: 4, class: `series-${one.colour}` }));
        text.append(draw("tspan", { class: `series-${one.colour}`, dx: 9 }, brief(found[1])));
      }
    }
    parts.push(text);
  }
}

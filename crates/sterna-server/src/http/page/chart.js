// A chart of numbers over time, as SVG: drawn anew at most a few times a second, coloured by the style sheet.

const SVG = "http://www.w3.org/2000/svg";
// Limits on what is kept, whatever arrives.
const SERIES = 8;
const POINTS = 2_000;
const DRAW_MS = 200;
const LEFT = 52;
const RIGHT = 12;
const TOP = 8;
const BOTTOM = 22;
// A point that the pointer is further from, in pixels, is not what it shows.
const NEAR = 40;

function element(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    made.setAttribute(key, value);
  }
  if (text !== undefined) {
    made.textContent = text;
  }
  return made;
}

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

// At most `count` round values from `low` to `high`.
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
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

function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString([], { hour12: false });
}

export class Chart {
  constructor(place, legend) {
    this.place = place;
    this.legend = legend;
    this.series = new Map();
    this.left = new Set();
    this.windowS = 600;
    this.pointer = null;
    this.timer = null;
    this.svg = element("svg", { role: "img", "aria-label": "Numeric payloads over time" });
    place.append(this.svg);
    new ResizeObserver(() => this.soon()).observe(place);
    place.addEventListener("pointermove", (event) => {
      this.pointer = event.clientX - place.getBoundingClientRect().left;
      this.soon(0);
    });
    place.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.soon(0);
    });
    // Time goes on when nothing comes.
    setInterval(() => this.series.size && this.soon(), 1000);
    this.draw();
  }

  add(topic, payload, at) {
    for (const [member, value] of numbers(payload)) {
      const name = member ? `${topic} ${member}` : topic;
      let one = this.series.get(name);
      if (!one) {
        if (this.series.size >= SERIES) {
          if (this.left.size < 1_000) {
            this.left.add(name);
          }
          continue;
        }
        const used = new Set(Array.from(this.series.values(), (each) => each.colour));
        const colour = [...Array(SERIES).keys()].find((index) => !used.has(index));
        one = { name, colour, points: [], visible: true };
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
  }

  entry(one) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = `series-${one.colour}`;
    button.setAttribute("aria-pressed", "true");
    button.title = one.name;
    const name = document.createElement("span");
    name.textContent = one.name;
    one.value = document.createElement("b");
    button.append(document.createElement("i"), name, one.value);
    button.addEventListener("click", () => {
      one.visible = !one.visible;
      button.setAttribute("aria-pressed", String(one.visible));
      this.soon(0);
    });
    const item = document.createElement("li");
    item.append(button);
    this.legend.append(item);
  }

  clear() {
    this.series.clear();
    this.left.clear();
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

  draw() {
    const { width, height } = this.place.getBoundingClientRect();
    if (!width) {
      return;
    }
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [];
    const end = Date.now();
    const begin = end - this.windowS * 1000;
    const seen = [];
    for (const one of this.series.values()) {
      // The last point before the window, too: a line comes in from the left.
      const first = one.points.findIndex(([at]) => at >= begin);
      const points = first < 0 ? [] : one.points.slice(Math.max(0, first - 1));
      if (one.visible && points.length) {
        seen.push({ one, points });
      }
    }
    const frame = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
    if (!seen.length) {
      const text = this.series.size
        ? "no number in this time"
        : "payloads that are numbers, or JSON objects with numbers, are drawn here";
      const [x, y] = [width / 2, height / 2];
      parts.push(element("text", { x, y, "text-anchor": "middle", class: "empty" }, text));
      this.svg.replaceChildren(...parts);
      return;
    }
    const values = seen.flatMap(({ points }) => points.map(([, value]) => value));
    let low = values.reduce((least, value) => Math.min(least, value));
    let high = values.reduce((most, value) => Math.max(most, value));
    const margin = (high - low || Math.abs(high) || 1) * 0.08;
    [low, high] = [low - margin, high + margin];
    // What came in the first seconds fills the width.
    const oldest = Math.min(...seen.map(({ points }) => points[0][0]));
    const start = Math.max(begin, Math.min(oldest, end - 10_000));
    const x = (at) => frame.left + ((at - start) / (end - start)) * (frame.right - frame.left);
    const y = (value) => frame.bottom - ((value - low) / (high - low)) * (frame.bottom - frame.top);
    this.grid(parts, frame, x, y, [start, end], [low, high]);
    const clip = element("clipPath", { id: "frame" });
    clip.append(element("rect", { x: frame.left, y: 0, width: frame.right - frame.left + 4, height }));
    parts.push(clip);
    const lines = element("g", { "clip-path": "url(#frame)" });
    for (const { one, points } of seen) {
      const line = points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      lines.append(element("polyline", { points: line, class: `series-${one.colour}` }));
      const [at, value] = points[points.length - 1];
      lines.append(element("circle", { cx: x(at), cy: y(value), r: 3.5, class: `series-${one.colour}` }));
    }
    parts.push(lines);
    if (this.pointer !== null && this.pointer >= frame.left && this.pointer <= frame.right) {
      const share = (this.pointer - frame.left) / (frame.right - frame.left);
      this.readout(parts, frame, seen, x, y, start + share * (end - start));
    } else if (this.left.size) {
      const text = `and ${this.left.size} more that are not drawn`;
      parts.push(element("text", { x: frame.right, y: frame.top + 8, "text-anchor": "end" }, text));
    }
    this.svg.replaceChildren(...parts);
  }

  grid(parts, frame, x, y, [start, end], [low, high]) {
    const [rows, step] = ticks(low, high, 5);
    for (const value of rows) {
      const at = y(value);
      parts.push(element("line", { x1: frame.left, x2: frame.right, y1: at, y2: at, class: "grid" }));
      parts.push(element("text", { x: frame.left - 8, y: at + 4, "text-anchor": "end" }, shown(value, step)));
    }
    const count = Math.max(2, Math.floor((frame.right - frame.left) / 130));
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];
    const every = (steps.find((each) => (end - start) / 1000 / each <= count) ?? 3600) * 1000;
    for (let at = Math.ceil(start / every) * every; at <= end; at += every) {
      const place = x(at);
      if (place > frame.left + 22 && place < frame.right - 22) {
        parts.push(element("text", { x: place, y: frame.bottom + 16, "text-anchor": "middle" }, clock(at)));
      }
    }
  }

  // What each line says at the pointer.
  readout(parts, frame, seen, x, y, at) {
    const place = x(at);
    parts.push(element("line", { x1: place, x2: place, y1: frame.top, y2: frame.bottom, class: "cursor" }));
    const anchor = place > (frame.left + frame.right) / 2 ? "end" : "start";
    const attributes = { x: place + (anchor === "end" ? -8 : 8), y: frame.top + 8, "text-anchor": anchor };
    const text = element("text", attributes, clock(at));
    for (const { one, points } of seen) {
      const found = points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
      if (Math.abs(x(found[0]) - place) < NEAR) {
        parts.push(element("circle", { cx: x(found[0]), cy: y(found[1]), r: 4, class: `series-${one.colour}` }));
        text.append(element("tspan", { class: `series-${one.colour}`, dx: 9 }, brief(found[1])));
      }
    }
    parts.push(text);
  }
}

// Elements, as the page makes them. Whatever comes from the broker is text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// An element with attributes and children; texts among the children stay texts.
export function make(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

// The same in a drawing.
export function draw(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

// A button that does something when it is pressed.
export function button(text, doing, attributes = {}) {
  const made = make("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", () => doing(made));
  return made;
}

// A button for what cannot be undone: the first press asks, the second within a few seconds does it.
export function twice(text, question, doing, attributes = {}) {
  let timer = null;
  const calm = (made) => {
    clearTimeout(timer);
    timer = null;
    made.textContent = text;
    made.removeAttribute("data-asks");
  };
  return button(
    text,
    (made) => {
      if (timer !== null) {
        calm(made);
        doing(made);
        return;
      }
      made.textContent = question;
      made.setAttribute("data-asks", "");
      timer = setTimeout(() => calm(made), 5_000);
    },
    attributes,
  );
}

// Terms and what is said of them, as the content of a `dl`; what is unknown is left out.
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return known.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
}

// A table's row, each cell with the name of its column for narrow screens.
export function row(columns, values, attributes = {}) {
  const cells = values.map((value, at) => {
    const [name, kind] = columns[at];
    return make("td", { "data-label": name, class: kind }, value ?? "–");
  });
  return make("tr", attributes, ...cells);
}

// A table with a heading.
export function table(columns, rows, label) {
  const heads = columns.map(([name, kind]) => make("th", { scope: "col", class: kind }, name));
  return make("table", { "aria-label": label }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}

// Columns with the node behind the first, where entries are of a cluster's nodes.
export function withNode(columns, items) {
  return items.some((item) => item.node) ? [columns[0], ["Node", ""], ...columns.slice(1)] : columns;
}

// A line about nodes of a cluster that have not answered; nothing where all have.
export function silent(nodes, name = "p") {
  return nodes?.length ? make(name, { class: "notice", role: "status" }, `No answer from ${nodes.join(", ")}: what is there is not shown.`) : "";
}

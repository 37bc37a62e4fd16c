// Tabs (WAI-ARIA): one of them is chosen by the fragment of the address, `#/NAME` or `#/NAME/ARGUMENT`.

export class Tabs {
  // `panels` has an object with `show(argument)` and `hide()` for each name.
  constructor(list, panels) {
    this.panels = panels;
    this.current = null;
    this.tabs = [...list.querySelectorAll('[role="tab"]')];
    for (const tab of this.tabs) {
      tab.addEventListener("click", () => go(tab.dataset.tab));
    }
    list.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.follow());
  }

  key(event) {
    const at = this.tabs.indexOf(event.target);
    const last = this.tabs.length - 1;
    const to = {
      ArrowRight: at === last ? 0 : at + 1,
      ArrowLeft: at === 0 ? last : at - 1,
      Home: 0,
      End: last,
    }[event.key];
    if (at >= 0 && to !== undefined) {
      event.preventDefault();
      this.tabs[to].focus();
      go(this.tabs[to].dataset.tab);
    }
  }

  // Shows what the address says.
  follow() {
    const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
    const known = this.panels[name] ? name : this.tabs[0].dataset.tab;
    let argument = null;
    try {
      argument = rest.length ? decodeURIComponent(rest.join("/")) : null;
    } catch {
      // No address that this page makes.
    }
    if (this.current) {
      this.panels[this.current].hide();
    }
    this.current = known;
    for (const tab of this.tabs) {
      const isIt = tab.dataset.tab === known;
      tab.setAttribute("aria-selected", String(isIt));
      tab.tabIndex = isIt ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isIt;
    }
    this.panels[known].show(argument);
  }
}

// The address of a tab, or of a thing in it.
export function address(name, argument) {
  return `#/${name}${argument === undefined ? "" : `/${encodeURIComponent(argument)}`}`;
}

export function go(name, argument) {
  location.hash = address(name, argument);
}

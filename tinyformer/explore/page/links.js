/** Tokens in a line, with a line of SVG from the chosen one to each token that it looks at. */

import { element, inks, shade, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 110; // of the room for the lines, in pixels
const FAINTEST = 0.005; // weights below it get no line

/**
 * The tokens that look (queries) and those that are looked at (keys). If they are the same, they stand in one line below its
 * arcs; otherwise the keys stand above the queries. The arrow keys move from query to query; so does the pointer.
 */
export class Links {
  /**
   * @param {HTMLElement} parent gets them
   * @param {object} how
   * @param {string[]} how.queries texts of the tokens that look
   * @param {string[]|null} how.keys texts of those that are looked at; null: the same tokens
   * @param {string} how.label what the queries are, for those who cannot see them
   * @param {{queries: string, keys: string}} how.axes what the queries and the keys are called in the picture
   * @param {(query: number) => string} how.name what a query is called
   * @param {(query: number) => void} how.onchoose a query was chosen
   */
  constructor(parent, how) {
    this.how = how;
    this.lines = document.createElementNS(SVG, "svg");
    this.lines.setAttribute("aria-hidden", "true");
    this.lines.setAttribute("height", HEIGHT);
    this.queries = how.queries.map((text, query) =>
      element("button", { class: "token", type: "button", tabIndex: -1, "data-query": query, "aria-label": how.name(query), "aria-describedby": "attention-most" }, visible(text)));
    this.keys = how.keys?.map((text) => element("span", { class: "token" }, visible(text))) ?? this.queries;
    const title = (text) => element("p", { class: "axes", "aria-hidden": "true" }, text);
    const below = element("div", { class: "tokens", role: "group", "aria-label": `${how.label}: ${how.axes.queries}. Arrow keys move.` }, ...this.queries);
    const above = how.keys ? [title(how.axes.keys), element("div", { class: "tokens" }, ...this.keys)] : [];
    this.sheet = element("div", {}, ...above, this.lines, below, title(how.keys ? how.axes.queries : `Marked: ${how.axes.queries} · lines lead to ${how.axes.keys}`));
    this.box = element("div", { class: "links" }, this.sheet);
    parent.replaceChildren(this.box);
    for (const kind of ["pointerover", "focusin", "click"]) {
      below.addEventListener(kind, (event) => {
        const query = event.target.closest("button")?.dataset.query;
        if (query === undefined) return;
        this.pointed = kind === "pointerover"; // then it stays under the pointer
        how.onchoose(Number(query));
        this.pointed = false;
      });
    }
    below.addEventListener("keydown", (event) => this.key(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.sheet);
    this.query = -1;
    this.pointed = false;
    this.weights = null;
  }

  /** Take them away. */
  remove() {
    this.watcher.disconnect();
    this.box.remove();
  }

  /**
   * Show what a query looks at.
   * @param {number} query
   * @param {number[]|null} weights one for each key; null where they are not known yet
   * @param {(key: number, weight: number|null) => string} tell the words about a key
   * @param {(key: number) => boolean} hidden whether the query cannot see a key
   */
  show(query, weights, tell, hidden) {
    const before = this.queries[this.query];
    before?.classList.remove("lit");
    before?.removeAttribute("aria-current");
    if (before) before.tabIndex = -1;
    const button = this.queries[query];
    button.classList.add("lit");
    button.setAttribute("aria-current", "true");
    button.tabIndex = 0;
    Object.assign(this, { query, weights });
    const inkOn = inks();
    this.keys.forEach((token, key) => {
      const unseen = hidden(key);
      const strength = weights && !unseen ? Math.sqrt(weights[key]) : 0;
      token.classList.toggle("hidden-token", unseen);
      token.style.backgroundColor = strength ? shade(strength) : "";
      token.style.color = strength ? inkOn(strength) : "";
      token.title = tell(key, weights?.[key] ?? null);
    });
    if (!this.pointed) this.reveal(button);
    this.draw();
  }

  /** Scroll sideways to a token. */
  reveal(token) {
    const [left, right] = [token.offsetLeft, token.offsetLeft + token.offsetWidth];
    if (left < this.box.scrollLeft) this.box.scrollLeft = left - 20;
    else if (right > this.box.scrollLeft + this.box.clientWidth) this.box.scrollLeft = right - this.box.clientWidth + 20;
  }

  draw() {
    const { query, weights, keys, lines } = this;
    const middle = (token) => token.offsetLeft + token.offsetWidth / 2;
    if (!weights || !this.box.clientWidth) {
      lines.replaceChildren();
      return;
    }
    const from = middle(this.queries[query]);
    const drawn = [];
    for (let key = 0; key < keys.length; key++) {
      if (weights[key] < FAINTEST) continue;
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", this.how.keys ? straight(from, middle(keys[key])) : arc(from, middle(keys[key])));
      path.setAttribute("stroke-opacity", Math.sqrt(weights[key]).toFixed(3));
      path.dataset.key = key;
      drawn.push(path);
    }
    lines.setAttribute("width", this.sheet.scrollWidth);
    lines.replaceChildren(...drawn);
  }

  key(event) {
    const last = this.queries.length - 1;
    const goals = { ArrowLeft: this.query - 1, ArrowUp: this.query - 1, ArrowRight: this.query + 1, ArrowDown: this.query + 1, Home: 0, End: last };
    if (!(event.key in goals)) return;
    event.preventDefault();
    this.queries[Math.max(0, Math.min(last, goals[event.key]))].focus({ preventScroll: true });
  }
}

function straight(from, to) {
  return `M ${from} ${HEIGHT} L ${to} 0`;
}

function arc(from, to) {
  if (from === to) return `M ${from} ${HEIGHT} C ${from - 16} ${HEIGHT - 30} ${from + 16} ${HEIGHT - 30} ${from} ${HEIGHT}`;
  const top = HEIGHT - 2 * Math.min(HEIGHT / 2 - 4, 12 + Math.abs(to - from) / 5); // the arc itself goes half as high
  return `M ${from} ${HEIGHT} Q ${(from + to) / 2} ${top} ${to} ${HEIGHT}`;
}

/** A table of all heads and MLPs by how much the model needs them, which fills in the background. */

import { latest, stream } from "./api.js";
import { key } from "./parts.js";
import { saveSvg } from "./save.js";
import { element, signed, troubleLine } from "./text.js";

const WAYS = { zero: "zero", mean: "its mean" };

/** The table, and the buttons that start and stop it. */
export class RankingTable {
  /**
   * @param {HTMLElement} parent gets it
   * @param {(found: object[]) => void} onfound more parts are ranked: {kind, name, index, zero, mean}
   */
  constructor(parent, onfound) {
    this.onfound = onfound;
    this.found = []; // the lines that have come
    this.by = "zero"; // what it is sorted by: "zero", "mean" or "part"
    this.start = element("button", { type: "button", onclick: () => this.run(this.passage) }, "Rank all heads and MLPs");
    this.stop = element("button", { type: "button", hidden: true, onclick: () => this.cancel("Stopped: ") }, "Stop");
    this.progress = element("progress", { value: 0, max: 1, hidden: true, "aria-label": "Parts that are ranked" });
    this.said = element("p", { class: "note", role: "status" });
    const [trouble, refuse] = troubleLine();
    this.heads = Object.fromEntries(["part", "zero", "mean"].map((by) => [by, this.headOf(by)]));
    this.body = element("tbody", {});
    const table = element("table", { class: "ranking" }, element("thead", {}, element("tr", {}, ...Object.values(this.heads))), this.body);
    const save = saveSvg(() => "Importance of heads and MLPs", () => [this.said, table]);
    this.picture = element("div", { hidden: true }, element("div", { class: "ranking-box" }, table), save);
    parent.append(element("div", { class: "controls" }, this.start, this.stop, this.progress), this.said, trouble, this.picture);
    this.run = latest((signal, passage) => this.fill(signal, passage), refuse);
  }

  headOf(by) {
    const sort = () => {
      this.by = by;
      this.sort();
    };
    return element("th", { scope: "col" }, element("button", { type: "button", onclick: sort }, by));
  }

  /**
   * Show no ranking, and be ready for that of a passage.
   * @param {import("./parts.js").Parts} parts
   * @param {object} passage as questions take it
   */
  prepare(parts, passage) {
    Object.assign(this, { parts, passage });
    this.cancel("");
    this.empty();
    this.picture.hidden = true;
  }

  empty() {
    this.found = [];
    this.rows = new Map();
    this.body.replaceChildren();
  }

  /** Stop what is being computed. */
  cancel(why) {
    this.controller?.abort();
    this.busy(false);
    this.said.textContent = why && `${why}${this.found.length ? `${this.found.length} of ${this.total}` : "none"} are ranked.`;
  }

  async fill(signal, passage) {
    const controller = (this.controller = new AbortController());
    const own = controller.signal;
    signal.addEventListener("abort", () => controller.abort());
    this.empty();
    this.busy(true);
    try {
      for await (const line of stream("ranking", { passage }, own)) {
        if (own.aborted) return;
        if (line.parts) this.begin(line);
        else this.add(line);
      }
      if (own.aborted) return;
      this.said.textContent = `All ${this.total} heads and MLPs are ranked.`;
      this.busy(false);
    } catch (error) {
      if (!own.aborted) this.busy(false);
      throw error;
    }
  }

  begin({ parts, measure }) {
    this.total = parts;
    this.progress.max = parts;
    const what = measure === "loss" ? "Δ loss" : "divergence";
    const names = { part: "Part", zero: `${what}, ${WAYS.zero}`, mean: `${what}, ${WAYS.mean}` };
    for (const [by, head] of Object.entries(this.heads)) head.firstChild.textContent = names[by];
    this.picture.hidden = false;
  }

  add(line) {
    this.found.push(line);
    this.progress.value = this.found.length;
    this.said.textContent = `${this.found.length} of ${this.total} are ranked.`;
    this.rows.set(key(line), this.rowOf(line));
    this.sort();
    this.onfound(this.found);
  }

  rowOf(line) {
    const part = { kind: line.kind, name: line.name, index: line.index };
    const cells = Object.keys(WAYS).map((way) => element("td", {}, signed(line[way])));
    const button = this.describe(element("button", { type: "button" }), part);
    return element("tr", { onclick: () => this.parts.toggle(part) }, element("th", { scope: "row" }, button), ...cells);
  }

  /** Say in the button of a part what it is called, and whether it is off. */
  describe(button, part) {
    const label = this.parts.label(part);
    button.replaceChildren(element("span", {}, label), this.parts.title(part).slice(label.length));
    button.setAttribute("aria-label", `Switch off ${button.textContent}`);
    button.setAttribute("aria-pressed", String(this.parts.isOff(part)));
    return button;
  }

  /** Put the rows in order. The one that has the focus keeps it. */
  sort() {
    const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
    const order = this.by === "part" ? this.found : [...this.found].sort((a, b) => b[this.by] - a[this.by]);
    this.body.replaceChildren(...order.map((line) => this.rows.get(key(line))));
    focused?.focus({ preventScroll: true });
    for (const [by, head] of Object.entries(this.heads)) head.setAttribute("aria-sort", by !== this.by ? "none" : by === "part" ? "ascending" : "descending");
  }

  /** Show what is off, and what the heads are called. */
  draw() {
    for (const line of this.found) this.describe(this.rows.get(key(line)).querySelector("button"), line);
  }

  busy(is) {
    this.start.hidden = is;
    this.stop.hidden = this.progress.hidden = !is;
  }
}

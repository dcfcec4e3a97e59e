/** The tree of a beam search: a column for each step, of which only those that are seen are drawn. */

import { saveSvg } from "./save.js";
import { element, number, percent, shade, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [72, 34]; // of a node
const [ACROSS, DOWN] = [98, 42]; // from one node to the next
const EDGE = 12; // around the tree

/** An SVG element with these attributes. Strings among the children become text. */
function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * A tree that grows, in a scrolling box, with a line below that tells about the node under the pointer. The arrow keys move from
 * node to node: left to the parent, right to the likeliest child, up and down within a step.
 */
export class SearchTree {
  /** @param {HTMLElement} parent gets the tree */
  constructor(parent) {
    this.nodes = [{ step: 0, text: "", state: "passage", log_probability: 0, children: [], row: 0 }];
    this.columns = [[0]];
    this.rows = 1;
    this.at = 0;
    this.hypotheses = []; // each the set of its nodes, the best first
    this.greedy = new Set();
    this.lit = null; // the nodes of one text that is pointed at
    this.grown = 0; // the last step of the beam search
    this.svg = drawn("svg", { "aria-hidden": "true" });
    this.box = element("div", { class: "searchtree", tabIndex: 0, role: "application", "aria-label": "Tree of the search. Arrow keys move." }, this.svg);
    this.line = element("p", { class: "readout", "aria-live": "polite" });
    this.save = saveSvg(() => "Greedy and beam search", () => this.whole());
    parent.replaceChildren(this.box, this.line, this.save);
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["pointerover", "click"]) {
      this.box.addEventListener(kind, (event) => {
        const node = event.target.closest("[data-node]");
        if (node) this.move(Number(node.dataset.node));
      });
    }
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.box);
  }

  /** Take the tree away. */
  remove() {
    this.watcher.disconnect();
    for (const part of [this.box, this.line, this.save]) part.remove();
  }

  /**
   * Add the nodes of a step.
   * @param {{step: number, greedy: boolean, nodes: object[]}} answer of the question "search"
   */
  grow({ step, greedy, nodes }) {
    for (const node of nodes) {
      const id = this.nodes.length;
      this.nodes.push({ ...node, children: [], row: 0 });
      this.nodes[node.parent].children.push(id);
      (this.columns[node.step] ??= []).push(id);
    }
    if (!greedy) this.grown = step;
    if (!nodes.length) return;
    this.arrange();
    this.draw();
  }

  /**
   * Mark the paths of the texts that were found.
   * @param {{nodes: number[]}[]} hypotheses the best first
   * @param {{nodes: number[]}} greedy
   */
  finish(hypotheses, greedy) {
    this.hypotheses = hypotheses.map(({ nodes }) => new Set(nodes));
    this.greedy = new Set(greedy.nodes);
    this.draw();
  }

  /** Mark one text more than the others; null marks none. */
  light(nodes) {
    this.lit = nodes && new Set(nodes);
    this.draw();
  }

  /** Give each node a row: children in the order of their parents, so that no lines cross, and as near to them as there is room. */
  arrange() {
    this.rows = Math.max(...this.columns.map((column) => column.length));
    this.nodes[0].row = Math.floor((this.rows - 1) / 2);
    for (let step = 1; step < this.columns.length; step++) {
      const column = this.columns[step - 1].flatMap((id) => this.nodes[id].children.slice().sort((a, b) => this.nodes[b].log_probability - this.nodes[a].log_probability));
      this.columns[step] = column;
      let free = 0;
      column.forEach((id, i) => {
        const parent = this.nodes[this.nodes[id].parent];
        const middle = Math.floor((parent.children.length - 1) / 2);
        const wanted = parent.row - middle + this.place(column, i);
        const last = this.rows - (column.length - i); // those below need a row, too
        free = this.nodes[id].row = Math.min(Math.max(free, wanted), last);
        free += 1;
      });
    }
  }

  /** How many of its parent's children stand above a node. */
  place(column, i) {
    let above = 0;
    while (i - above > 0 && this.nodes[column[i - above - 1]].parent === this.nodes[column[i]].parent) above += 1;
    return above;
  }

  x(node) {
    return EDGE + node.step * ACROSS;
  }

  y(node) {
    return EDGE + node.row * DOWN;
  }

  /** The picture with all its columns. The next draw() leaves those that are not seen out again. */
  whole() {
    this.draw(true);
    requestAnimationFrame(() => this.draw());
    return [this.svg];
  }

  /** Draw the columns that are seen, or all. */
  draw(isWhole = false) {
    const width = 2 * EDGE + (this.columns.length - 1) * ACROSS + WIDTH;
    const height = 2 * EDGE + (this.rows - 1) * DOWN + HEIGHT;
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("height", height);
    if (!this.box.clientWidth) return; // not on the screen
    const first = Math.max(0, Math.floor((this.box.scrollLeft - EDGE) / ACROSS) - 1);
    const seen = (isWhole ? this.columns : this.columns.slice(first, first + Math.ceil(this.box.clientWidth / ACROSS) + 3)).flat();
    const lines = seen.filter((id) => id).map((id) => this.edge(id));
    this.svg.replaceChildren(...lines.flat(), ...seen.map((id) => this.node(id)));
  }

  /** The classes of a node and of the line to it. */
  kind(id) {
    const rank = this.hypotheses.findIndex((nodes) => nodes.has(id));
    const kinds = [this.nodes[id].state];
    if (rank === 0) kinds.push("best");
    if (rank >= 0) kinds.push("found");
    else if (this.isLeft(id)) kinds.push("left");
    if (this.greedy.has(id)) kinds.push("greedily");
    if (this.lit?.has(id)) kinds.push("lit");
    if (id === this.at) kinds.push("at");
    return kinds.join(" ");
  }

  /** Whether the search has gone on without this text. */
  isLeft(id) {
    const { state, step, children } = this.nodes[id];
    if (id === 0 || state === "finished") return false;
    if (state === "greedy") return !this.greedy.has(id);
    return this.hypotheses.length > 0 || (step < this.grown && !children.length);
  }

  /** The line from its parent to a node, as thick as the token is likely, and the dashes of the greedy search beside it. */
  edge(id) {
    const node = this.nodes[id];
    const parent = this.nodes[node.parent];
    const [x1, y1, x2, y2] = [this.x(parent) + WIDTH, this.y(parent) + HEIGHT / 2, this.x(node), this.y(node) + HEIGHT / 2];
    const bend = (x1 + x2) / 2;
    const curve = (shift) => `M${x1} ${y1 + shift}C${bend} ${y1 + shift} ${bend} ${y2 + shift} ${x2} ${y2 + shift}`;
    const kind = this.kind(id);
    const lines = [drawn("path", { class: `edge ${kind}`, d: curve(0), "stroke-width": (1 + 4 * this.probability(node)).toFixed(2) })];
    if (this.greedy.has(id)) lines.push(drawn("path", { class: "dashes", d: curve(6) }));
    return lines;
  }

  node(id) {
    const node = this.nodes[id];
    const share = this.probability(node);
    const group = drawn("g", { class: `node ${this.kind(id)}`, "data-node": id, transform: `translate(${this.x(node)} ${this.y(node)})` });
    if (node.score !== null && node.score !== undefined) group.append(drawn("rect", { class: "ring", x: -4, y: -4, width: WIDTH + 8, height: HEIGHT + 8, rx: 8 }));
    group.append(
      drawn("title", {}, this.tell(id)),
      drawn("rect", { class: "back", width: WIDTH, height: HEIGHT, rx: 5 }),
      drawn("rect", { class: "body", width: WIDTH, height: HEIGHT, rx: 5 }),
    );
    group.lastChild.style.fill = id ? shade(0.45 * share) : "none"; // so faint that the ink is read on it
    const name = id ? shortened(visible(node.text), 9) : "the text";
    const under = node.score !== null && node.score !== undefined ? number(node.score) : id ? percent(share) : "";
    group.append(drawn("text", { class: "name", x: WIDTH / 2, y: under ? 14 : 21 }, name), drawn("text", { class: "under", x: WIDTH / 2, y: 28 }, under));
    return group;
  }

  /** The probability of a node's token after its parent. */
  probability(node) {
    return node.parent === undefined ? 1 : Math.min(1, Math.exp(node.log_probability - this.nodes[node.parent].log_probability));
  }

  /** A line about a node. */
  tell(id) {
    const node = this.nodes[id];
    if (id === 0) return "The text that the search goes on from";
    const path = [];
    for (let at = id; at; at = this.nodes[at].parent) path.unshift(this.nodes[at].text);
    const soFar = shortened(visible(path.join("")), 60, true);
    const sum = `log-probability ${number(node.log_probability)} (${percent(Math.exp(node.log_probability))})`;
    return `Step ${node.step}: “${visible(node.text)}” ${percent(this.probability(node))} after its parent · “${soFar}” has ${sum} · ${this.fate(id)}`;
  }

  /** What became of a node. */
  fate(id) {
    const { state, score } = this.nodes[id];
    const ranks = this.hypotheses.flatMap((nodes, i) => (nodes.has(id) ? [i + 1] : []));
    const fates = [];
    if (score !== null && score !== undefined) fates.push(`ended, score ${number(score)}`);
    if (ranks.length) fates.push(`on the way to ${ranks.map((rank) => `no. ${rank}`).join(", ")}`);
    else if (state === "greedy") fates.push("not kept by the beam");
    else if (this.isLeft(id)) fates.push("left behind");
    else if (state === "kept") fates.push("kept");
    if (this.greedy.has(id)) fates.push("greedy");
    return fates.join(", ");
  }

  /** Tell about a node. */
  move(id) {
    if (id === this.at && this.line.textContent) return;
    this.at = id;
    this.line.textContent = this.tell(id);
    for (const group of this.svg.querySelectorAll(".node")) group.classList.toggle("at", Number(group.dataset.node) === id);
  }

  key(event) {
    const column = this.columns[this.nodes[this.at].step];
    const place = column.indexOf(this.at);
    const children = this.columns[this.nodes[this.at].step + 1]?.filter((id) => this.nodes[id].parent === this.at);
    const next = {
      ArrowLeft: this.nodes[this.at].parent,
      ArrowRight: children?.[0],
      ArrowUp: column[place - 1],
      ArrowDown: column[place + 1],
      Home: 0,
      End: this.columns.at(-1)[0],
    };
    if (!(event.key in next)) return;
    event.preventDefault();
    if (next[event.key] === undefined) return;
    const node = this.nodes[next[event.key]];
    const fit = (scroll, room, from, size) => Math.max(Math.min(scroll, from - EDGE), from + size + EDGE - room);
    this.box.scrollLeft = fit(this.box.scrollLeft, this.box.clientWidth, this.x(node), WIDTH);
    this.box.scrollTop = fit(this.box.scrollTop, this.box.clientHeight, this.y(node), HEIGHT);
    this.draw();
    this.move(next[event.key]);
  }
}

/** A text of at most so many characters, with "…" for what is left out at its end, or at its beginning. */
function shortened(text, most, keepsEnd = false) {
  const letters = [...text];
  if (letters.length <= most) return text;
  return keepsEnd ? `…${letters.slice(1 - most).join("")}` : `${letters.slice(0, most - 1).join("")}…`;
}

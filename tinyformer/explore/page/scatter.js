/** Many named points on a canvas. Only those in view are drawn, and names where there is room. */

import { savePng } from "./save.js";
import { element } from "./text.js";

const FONT = "12px ui-monospace, monospace";
const [CELL_WIDTH, CELL_HEIGHT] = [8, 15]; // the grid in which names may not overlap
const MOST_NAMES = 300;

/**
 * A scatter of points that is moved by dragging or the arrow keys, and enlarged by the wheel or + and -. The line below tells
 * about the point under the pointer; with the keys, about the one nearest to the middle. 0 shows all of it again.
 */
export class Scatter {
  /**
   * @param {HTMLElement} parent gets the scatter
   * @param {object} how
   * @param {Float32Array} how.points x and y of each
   * @param {string[]} how.names one of each
   * @param {(index: number) => string} how.tell the line about a point
   * @param {string} how.label what it shows
   * @param {object} [how.bounds] what is seen at first: left, right, bottom and top. By default it is all points.
   * @param {string[]} [how.lines] that stand above a picture that is saved
   * @param {string} how.note says below it what the marks are
   */
  constructor(parent, how) {
    this.how = how;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.box = element(
      "div",
      { class: "scatter", tabIndex: 0, role: "application", "aria-label": `${how.label}. Arrow keys move, plus and minus enlarge and shrink, 0 shows all.` },
      this.canvas,
    );
    this.line = element("p", { class: "readout", "aria-live": "polite" });
    const button = (text, label, act) => {
      const made = element("button", { type: "button", "aria-label": label }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.buttons = element(
      "div",
      { class: "controls" },
      button("+", "Enlarge", () => this.zoom(1.5)),
      button("−", "Shrink", () => this.zoom(1 / 1.5)),
      button("All", "Show all points", () => this.showAll()),
      savePng(() => how.label, () => this.picture()),
    );
    parent.replaceChildren(this.box, this.line, this.buttons);
    this.rings = []; // indices of the points of the text
    this.found = []; // and of those that the search found
    this.frame = null; // the next one, if it is drawn with it
    this.at = -1; // the point that is told about
    this.bounds = how.bounds ?? boundsOf(how.points);
    this.listen();
    this.showAll();
  }

  /** Take it away. */
  remove() {
    cancelAnimationFrame(this.frame);
    this.watcher.disconnect();
    this.dark.removeEventListener("change", this.redraw);
    this.box.remove();
    this.line.remove();
    this.buttons.remove();
  }

  /** Move the points, as many as before. What is seen stays. */
  take(points) {
    this.how.points = points;
    if (this.at >= 0) this.line.textContent = this.how.tell(this.at);
    this.draw();
  }

  /** Mark points: those of the text by rings, and those that were found by filled dots. */
  light(rings, found) {
    this.rings = rings;
    this.found = found;
    this.draw();
  }

  /** Bring a point into the middle, large enough to tell it from its neighbours, and tell about it. */
  goTo(index) {
    this.middle = { x: this.how.points[2 * index], y: this.how.points[2 * index + 1] };
    this.scale = Math.max(this.scale, 4);
    this.tell(index);
  }

  /** The whole of it. */
  showAll() {
    const { left, right, bottom, top } = this.bounds;
    this.middle = { x: (left + right) / 2, y: (bottom + top) / 2 };
    this.scale = 1; // times the size at which all points are seen
    this.draw();
  }

  listen() {
    this.redraw = () => this.draw();
    this.watcher = new ResizeObserver(this.redraw);
    this.watcher.observe(this.box);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.redraw);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), this.under(event));
    }, { passive: false });
    let from = null;
    this.box.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY };
      this.box.setPointerCapture(event.pointerId);
    });
    this.box.addEventListener("pointerup", () => { from = null; });
    this.box.addEventListener("pointercancel", () => { from = null; });
    this.box.addEventListener("pointermove", (event) => {
      if (from) {
        this.move(from.x - event.clientX, event.clientY - from.y);
        from = { x: event.clientX, y: event.clientY };
      } else {
        const near = this.nearest(this.under(event), 12);
        if (near >= 0 && near !== this.at) this.tell(near);
      }
    });
  }

  key(event) {
    const steps = { ArrowLeft: [-40, 0], ArrowRight: [40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
    const step = steps[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return; // those are the browser's own
    if (step) this.move(...step);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0") this.showAll();
    else return;
    event.preventDefault();
    this.tell(this.nearest({ x: this.box.clientWidth / 2, y: this.box.clientHeight / 2 }, Infinity));
  }

  /** Move by so many pixels to the right and upwards. */
  move(right, up) {
    const unit = this.unit();
    const { left, right: end, bottom, top } = this.bounds;
    this.middle.x = Math.max(left, Math.min(end, this.middle.x + right / unit));
    this.middle.y = Math.max(bottom, Math.min(top, this.middle.y + up / unit));
    this.draw();
  }

  /** Enlarge by a factor; what is at the pixel stays there. */
  zoom(factor, pixel = { x: this.box.clientWidth / 2, y: this.box.clientHeight / 2 }) {
    const before = this.unit();
    this.scale = Math.max(0.5, Math.min(10000, this.scale * factor));
    const shift = 1 / before - 1 / this.unit();
    this.middle.x += (pixel.x - this.box.clientWidth / 2) * shift;
    this.middle.y -= (pixel.y - this.box.clientHeight / 2) * shift;
    this.draw();
  }

  /** Pixels for a step of 1. The same in both directions, so that distances are true. */
  unit() {
    const { left, right, bottom, top } = this.bounds;
    const room = 30;
    const fit = Math.min((this.box.clientWidth - 2 * room) / (right - left), (this.box.clientHeight - 2 * room) / (top - bottom));
    return this.scale * fit;
  }

  under(event) {
    const box = this.box.getBoundingClientRect();
    return { x: event.clientX - box.left - this.box.clientLeft, y: event.clientY - box.top - this.box.clientTop };
  }

  /** The pixel of a point, as it is drawn. */
  place(index) {
    const { points } = this.how;
    const { zero, unit } = this.view;
    return { x: zero.x + points[2 * index] * unit, y: zero.y - points[2 * index + 1] * unit };
  }

  /** The index of the point nearest to a pixel, at most so many pixels away; -1 if there is none. */
  nearest(pixel, most) {
    const { points } = this.how;
    const unit = this.unit();
    const x = this.middle.x + (pixel.x - this.box.clientWidth / 2) / unit;
    const y = this.middle.y - (pixel.y - this.box.clientHeight / 2) / unit;
    let best = -1;
    let shortest = (most / unit) ** 2;
    for (let i = 0; i < points.length / 2; i++) {
      const distance = (points[2 * i] - x) ** 2 + (points[2 * i + 1] - y) ** 2;
      if (distance < shortest) [best, shortest] = [i, distance];
    }
    return best;
  }

  tell(index) {
    if (index < 0) return;
    this.at = index;
    this.line.textContent = this.how.tell(index);
    this.draw();
  }

  /** What is saved of it: what is seen. */
  picture() {
    const { clientWidth: width, clientHeight: height } = this.box;
    return { size: { width, height }, lines: this.how.lines, note: this.how.note, draw: (pen) => this.drawOn(pen, width, height) };
  }

  /** Draw it with the next frame of the screen, however often this is called before. */
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.drawNow();
    });
  }

  drawNow() {
    const { clientWidth: across, clientHeight: down } = this.box;
    if (!across) return; // not on the screen
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = across * ratio;
    this.canvas.height = down * ratio;
    this.canvas.style.width = `${across}px`;
    this.canvas.style.height = `${down}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.drawOn(pen, across, down);
  }

  drawOn(pen, across, down) {
    pen.font = FONT;
    pen.textBaseline = "middle";
    const style = getComputedStyle(document.documentElement);
    const [paper, ink, faint, high, bad, rule] = ["--paper", "--ink", "--faint", "--high", "--bad", "--line"].map((name) => style.getPropertyValue(name).trim());
    pen.fillStyle = paper;
    pen.fillRect(0, 0, across, down);
    const { points } = this.how;
    const unit = this.unit();
    const zero = { x: across / 2 - this.middle.x * unit, y: down / 2 + this.middle.y * unit };
    this.view = { zero, unit };
    pen.fillStyle = rule; // the two axes
    pen.fillRect(zero.x, 0, 1, down);
    pen.fillRect(0, zero.y, across, 1);
    pen.fillStyle = `rgb(${high})`;
    pen.globalAlpha = points.length > 10000 ? 0.5 : 0.9;
    const size = points.length > 10000 ? 2 : 4;
    const seen = [];
    for (let i = 0; i < points.length / 2; i++) {
      const x = zero.x + points[2 * i] * unit;
      const y = zero.y - points[2 * i + 1] * unit;
      if (x < 0 || y < 0 || x > across || y > down) continue;
      pen.fillRect(x - size / 2, y - size / 2, size, size);
      seen.push(i);
    }
    pen.globalAlpha = 1;
    this.mark(pen, this.found, bad, true);
    this.mark(pen, this.rings, ink, false);
    if (this.at >= 0) this.mark(pen, [this.at], bad, false, 9);
    const names = [this.at, ...this.found, ...this.rings].filter((i) => i >= 0);
    this.name(pen, names, { color: ink, paper, across, down }, seen, faint);
  }

  mark(pen, indices, color, filled, radius = 5) {
    pen.strokeStyle = pen.fillStyle = color;
    pen.lineWidth = 1.5;
    for (const index of indices) {
      const { x, y } = this.place(index);
      pen.beginPath();
      pen.arc(x, y, radius, 0, 2 * Math.PI);
      if (filled) pen.fill();
      else pen.stroke();
    }
  }

  /** Write names beside points, first of those that are marked, where no other name is. */
  name(pen, marked, { color, paper, across, down }, others, faint) {
    const taken = new Set();
    let count = 0;
    const wide = Math.ceil(across / CELL_WIDTH);
    const write = (index, ink) => {
      const { x, y } = this.place(index);
      if (x < 0 || y < 0 || x > across || y > down) return;
      const text = this.how.names[index].slice(0, 24);
      const cells = [];
      const row = Math.floor(y / CELL_HEIGHT);
      const [first, last] = [Math.floor((x + 6) / CELL_WIDTH), Math.floor((x + 10 + 7.3 * text.length) / CELL_WIDTH)];
      for (let column = first; column <= last; column++) cells.push(row * wide * 2 + column, (row + 1) * wide * 2 + column);
      if (cells.some((cell) => taken.has(cell))) return;
      for (const cell of cells) taken.add(cell);
      pen.strokeStyle = paper; // a rim that keeps it legible on points
      pen.lineWidth = 3;
      pen.strokeText(text, x + 7, y);
      pen.fillStyle = ink;
      pen.fillText(text, x + 7, y);
      count += 1;
    };
    for (const index of marked.slice(0, MOST_NAMES)) write(index, color);
    for (const index of others) {
      if (count >= MOST_NAMES) break;
      write(index, faint);
    }
  }
}

function boundsOf(points) {
  const bounds = { left: Infinity, right: -Infinity, bottom: Infinity, top: -Infinity };
  for (let i = 0; i < points.length; i += 2) {
    bounds.left = Math.min(bounds.left, points[i]);
    bounds.right = Math.max(bounds.right, points[i]);
    bounds.bottom = Math.min(bounds.bottom, points[i + 1]);
    bounds.top = Math.max(bounds.top, points[i + 1]);
  }
  if (!(bounds.right > bounds.left)) [bounds.left, bounds.right] = [bounds.left - 1, bounds.left + 1];
  if (!(bounds.top > bounds.bottom)) [bounds.bottom, bounds.top] = [bounds.bottom - 1, bounds.bottom + 1];
  return bounds;
}

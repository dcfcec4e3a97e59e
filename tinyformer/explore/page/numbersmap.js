/** All arrays of a forward pass in one picture that one zooms into, down to the numbers of single cells. */

import { savePng } from "./save.js";
import { element } from "./text.js";
import { asList, asStream } from "./numberslayout.js";
import { Painter } from "./numberspaint.js";

const NARROW = 600; // pixels: below it the arrays stand one under the other
const FINEST = 48; // pixels: how wide a cell is at least when one looks at it
const EDGE = 8;

/** The picture. Its box takes part in the page's focus, and its keys are those of `KEYS` in numbers.js. */
export class NumbersMap {
  /**
   * @param {HTMLElement} parent gets the picture
   * @param {object} how
   * @param {() => string} how.title of a saved picture
   * @param {(array: object, place: number) => void} how.choose a cell was clicked
   */
  constructor(parent, how) {
    this.how = how;
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.box = element("div", { class: "numbers-map", tabIndex: 0, role: "application", "aria-describedby": "numbers-keys" }, this.canvas);
    this.save = savePng(how.title, () => this.picture());
    parent.append(this.box);
    this.layout = null; // as long as it is not seen
    this.view = { x: 0, y: 0, scale: 1, isWhole: true };
    this.marks = { cell: null, read: [] };
    this.painter = new Painter(this);
    this.pointers = new Map(); // that are down, by their ids
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
  }

  listen() {
    const on = (event, act) => this.box.addEventListener(event, act, { passive: false });
    on("wheel", (event) => {
      event.preventDefault();
      const { x, y } = this.place(event);
      if (event.ctrlKey || !event.shiftKey) this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), x, y);
      else this.pan(event.deltaY, 0);
    });
    on("pointerdown", (event) => {
      this.box.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, { ...this.place(event), moved: 0 });
    });
    on("pointermove", (event) => this.drag(event));
    on("pointerup", (event) => {
      const pointer = this.pointers.get(event.pointerId);
      this.pointers.delete(event.pointerId);
      const found = pointer?.moved < 5 && this.at(this.place(event));
      if (found) this.how.choose(found.box.array, found.place);
    });
    on("pointercancel", (event) => this.pointers.delete(event.pointerId));
  }

  place(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  /** One pointer moves the picture, two zoom it, as much as the distance between them grows. */
  drag(event) {
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) return;
    const now = this.place(event);
    const others = [...this.pointers.values()].filter((one) => one !== pointer);
    pointer.moved += Math.abs(now.x - pointer.x) + Math.abs(now.y - pointer.y);
    if (others.length) {
      const [other] = others;
      other.moved = Infinity;
      const apart = ({ x, y }) => Math.max(1, Math.hypot(x - other.x, y - other.y));
      this.zoom(apart(now) / apart(pointer), (now.x + other.x) / 2, (now.y + other.y) / 2);
    } else if (pointer.moved >= 5) this.pan(pointer.x - now.x, pointer.y - now.y);
    Object.assign(pointer, now);
  }

  /**
   * Take over these arrays, of which nothing is marked yet. They are drawn by `mark`, which says what is.
   * @param {object[]} arrays
   * @param {string[]} texts of the tokens
   * @param {Map<object, Float64Array>|null} gradients whose numbers are shown in the place of the values
   * @param {boolean} isOther whether it is another text or model: then all of it is shown
   */
  set(arrays, texts, gradients, isOther) {
    Object.assign(this, { arrays, texts, gradients, marks: { cell: null, read: [] }, sought: null });
    if (isOther) this.view.isWhole = true;
    this.arrange();
  }

  /** Lay the arrays out. In a box that is not seen, that waits until it is. */
  arrange() {
    const { clientWidth: width } = this.box;
    if (!width || this.isNarrow !== width < NARROW) this.view.isWhole = true; // what was seen before will be elsewhere
    if (!width) {
      this.layout = null;
      return;
    }
    this.isNarrow = width < NARROW;
    this.layout = this.isNarrow ? asList(this.arrays, width - 2 * EDGE) : asStream(this.arrays);
    this.boxes = new Map(this.layout.boxes.map((box) => [box.array, box]));
    if (this.view.isWhole) this.fit();
  }

  resize() {
    if (!this.arrays || !this.box.clientWidth) return;
    if (this.isNarrow !== this.box.clientWidth < NARROW || this.view.isWhole) this.arrange();
    if (this.sought) this.approach(...this.sought);
    this.draw();
  }

  /** Draw all in other colours. */
  repaint() {
    this.painter.images.clear();
    this.draw();
  }

  /** The numbers of an array that are shown. */
  numbers(array) {
    return this.gradients ? this.gradients.get(array) : array.values;
  }

  /** Show all of it; in a list, its beginning. */
  whole() {
    this.fit();
    this.draw();
  }

  fit() {
    const { clientWidth: width, clientHeight: height } = this.box;
    const across = (width - 2 * EDGE) / this.layout.width;
    const scale = this.isNarrow ? across : Math.min(across, (height - 2 * EDGE) / this.layout.height);
    const x = (this.layout.width - width / scale) / 2;
    this.view = { x, y: this.isNarrow ? -EDGE / scale : (this.layout.height - height / scale) / 2, scale, isWhole: true };
  }

  /** Zoom around a point of the canvas, by default its middle. */
  zoom(factor, x = this.box.clientWidth / 2, y = this.box.clientHeight / 2) {
    const { view } = this;
    const scale = Math.max(0.2, Math.min(2000, view.scale * factor));
    this.view = { x: view.x + x / view.scale - x / scale, y: view.y + y / view.scale - y / scale, scale, isWhole: false };
    this.draw();
  }

  /** Move by so many pixels. Some of the picture stays in sight. */
  pan(x, y) {
    const { view, layout, box } = this;
    const within = (at, size, shown) => Math.max(-shown * 0.8, Math.min(size - shown * 0.2, at));
    const [left, top] = [view.x + x / view.scale, view.y + y / view.scale];
    this.view = { scale: view.scale, isWhole: false, x: within(left, layout.width, box.clientWidth / view.scale), y: within(top, layout.height, box.clientHeight / view.scale) };
    this.draw();
  }

  /** Mark a cell and those that it was read from, [[array, place]]. With `isMoved` the cell comes into sight. */
  mark(cell, read, isMoved) {
    this.marks = { cell, read };
    if (cell && isMoved && this.layout) this.reveal(...cell);
    this.draw();
  }

  reveal(array, place) {
    const { x, y, width, height } = this.cell(this.boxes.get(array), place);
    const [across, down] = [this.box.clientWidth, this.box.clientHeight];
    const [left, top] = [(x - this.view.x) * this.view.scale, (y - this.view.y) * this.view.scale];
    const isSeen = left >= 0 && top >= 0 && left + width * this.view.scale <= across && top + height * this.view.scale <= down;
    if (isSeen) return;
    this.view = { ...this.view, x: x + width / 2 - across / 2 / this.view.scale, y: y + height / 2 - down / 2 / this.view.scale, isWhole: false };
  }

  /** Zoom until a cell has room for its number, with as much of its array in sight as can be. */
  approach(array, place) {
    this.sought = this.layout ? null : [array, place]; // once it is laid out
    if (this.sought) return;
    const box = this.boxes.get(array);
    const cell = this.cell(box, place);
    const scale = Math.max(FINEST / cell.width, 16 / cell.height);
    const [across, down, edge] = [this.box.clientWidth / scale, this.box.clientHeight / scale, 60 / scale];
    const along = (at, size, shown, from, all) => all + 2 * edge <= shown ? from + all / 2 - shown / 2 : Math.max(from - edge, Math.min(from + all + edge - shown, at + size / 2 - shown / 2));
    this.view = { scale, x: along(cell.x, cell.width, across, box.x, box.across), y: along(cell.y, cell.height, down, box.y, box.height), isWhole: false };
    this.draw();
  }

  /** Where a cell stands in the layout. */
  cell(box, place) {
    const { rows, columns } = box;
    const [head, row, column] = [Math.floor(place / (rows * columns)), Math.floor(place / columns) % rows, place % columns];
    const [width, height] = [box.width / columns, box.height / rows];
    return { x: box.x + head * box.pitch + column * width, y: box.y + row * height, width, height };
  }

  /** The box and the place of the cell at a point of the canvas; null where there is none. */
  at({ x, y }) {
    const [right, down] = [this.view.x + x / this.view.scale, this.view.y + y / this.view.scale];
    for (const box of this.layout?.boxes ?? []) {
      const head = Math.floor((right - box.x) / box.pitch);
      const column = Math.floor(((right - box.x - head * box.pitch) / box.width) * box.columns);
      const row = Math.floor(((down - box.y) / box.height) * box.rows);
      if (head >= 0 && head < box.heads && column >= 0 && column < box.columns && row >= 0 && row < box.rows) return { box, place: (head * box.rows + row) * box.columns + column };
    }
    return null;
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!this.layout || !width) return;
    const ratio = window.devicePixelRatio || 1;
    const [fineWidth, fineHeight] = [width, height].map((pixels) => Math.floor(pixels * ratio));
    if (this.canvas.width !== fineWidth || this.canvas.height !== fineHeight) Object.assign(this.canvas, { width: fineWidth, height: fineHeight });
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.painter.draw(pen, width, height);
  }

  picture() {
    const size = { width: this.box.clientWidth, height: this.box.clientHeight };
    return { size, draw: (pen) => this.painter.draw(pen, size.width, size.height), note: LEGEND };
  }
}

export const LEGEND = "Blue is above zero, orange below. The strength of a colour is the root of the number ÷ the largest of its array. Grey is −∞: what a query must not see.";

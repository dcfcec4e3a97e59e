/** A map of numbers: rows by columns of coloured cells, of which only those that are seen are drawn. */

import { savePng } from "./save.js";
import { element, inks } from "./text.js";

const FONT = "12px ui-monospace, monospace";
const WIDE = 40; // pixels: columns of this width have their names across, cut where they are longer
const MOST_SAVED = 4096; // pixels: of a map that is wider or taller only the part that is seen is saved

/**
 * A map of numbers in a scrolling box, with names of the rows and columns, and a line below that tells the number of the cell
 * under the pointer. The arrow keys move from cell to cell.
 */
export class HeatMap {
  /**
   * @param {HTMLElement} parent gets the map
   * @param {object} how
   * @param {string} how.label what the map shows, for those who cannot see it
   * @param {string[]} how.rows names of the rows
   * @param {string[]} how.columns names of the columns
   * @param {{rows: string, columns: string}} [how.axes] what the rows are, and what the columns are
   * @param {[number, string][]} [how.legend] strengths of the colour from -1 to 1, each with its number: for a picture that is saved
   * @param {() => Promise<void>} [how.complete] fetches all values that are not known yet: for a picture that is saved
   * @param {(row: number, column: number) => (number|null)} how.value a number; null where it is not known yet
   * @param {(row: number, column: number, value: number|null) => string} how.tell the line about a cell
   * @param {(value: number) => number} [how.scale] from a number to 0..1, the strength of its colour; below 0 another colour
   * @param {(row: number, column: number, value: number|null) => string} [how.write] what stands inside a cell
   * @param {(pen: CanvasRenderingContext2D, box: {x, y, width, height}, row: number, column: number) => void} [how.paint] draws a
   *   cell in the place of its colour
   * @param {(row: number, column: number) => boolean} [how.hidden] whether a cell is grey, as there cannot be a number
   * @param {number} [how.cell] the height of a cell in pixels
   * @param {number} [how.width] the width of a cell in pixels
   * @param {(row: number, column: number) => void} [how.onmove] the cell under the pointer, or that the keys moved to
   * @param {(row: number, column: number) => void} [how.onpick] the cell that was clicked, or chosen by Enter
   * @param {(range: {row: number, rows: number, column: number, columns: number}) => void} [how.onseen] which part is seen now
   */
  constructor(parent, how) {
    this.how = { scale: (x) => x, cell: 18, width: how.cell ?? 18, ...how };
    this.at = { row: 0, column: 0 };
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.sheet = element("div", {}, this.canvas);
    this.box = element("div", { class: "heatmap", tabIndex: 0, role: "application", "aria-label": [how.label, axesOf(how.axes), "Arrow keys move."].filter(Boolean).join(". ") }, this.sheet);
    this.line = element("p", { class: "readout", "aria-live": "polite" });
    this.axes = element("p", { class: "axes", "aria-hidden": "true", hidden: !how.axes }, axesOf(how.axes));
    this.save = savePng(() => how.label, () => this.picture());
    parent.replaceChildren(this.axes, this.box, this.line, this.save);
    this.measure();
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("click", (event) => this.point(event) && this.how.onpick?.(this.at.row, this.at.column));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.box);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.redraw = () => this.draw();
    this.dark.addEventListener("change", this.redraw);
    this.draw();
  }

  /** Take the map away. */
  remove() {
    this.watcher.disconnect();
    this.dark.removeEventListener("change", this.redraw);
    for (const part of [this.axes, this.box, this.line, this.save]) part.remove();
  }

  measure() {
    const pen = this.canvas.getContext("2d");
    pen.font = FONT;
    const widest = (names, most) => Math.min(most, Math.ceil(Math.max(0, ...names.slice(0, 2000).map((name) => pen.measureText(name).width))) + 10);
    this.left = widest(this.how.rows, 130);
    const { cell, width, rows, columns } = this.how;
    const tallest = Math.max(0, ...columns.slice(0, 2000).filter((name) => !this.isShort(pen, name)).map((name) => pen.measureText(name).width));
    this.top = Math.max(20, Math.min(90, Math.ceil(tallest) + 10));
    this.size = { width: this.left + width * columns.length + 2, height: this.top + cell * rows.length + 2 };
    this.sheet.style.width = `${this.size.width}px`;
    this.sheet.style.height = `${this.size.height}px`;
  }

  /** Whether the name of a column has room across it. Longer names stand upwards. */
  isShort(pen, name) {
    const { width } = this.how;
    return width >= WIDE || pen.measureText(name).width <= width - 2;
  }

  /** The part of the map that is seen now, in pixels. */
  view() {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.box;
    return { left: scrollLeft, top: scrollTop, width: Math.min(clientWidth, this.size.width), height: Math.min(clientHeight, this.size.height) };
  }

  /** The cells of a view: by default those that are seen now. */
  seen(view = this.view()) {
    const { cell, width, rows, columns } = this.how;
    const row = Math.floor(view.top / cell);
    const column = Math.floor(view.left / width);
    return {
      row,
      column,
      rows: Math.max(0, Math.min(rows.length - row, Math.ceil((view.height - this.top) / cell) + 1)),
      columns: Math.max(0, Math.min(columns.length - column, Math.ceil((view.width - this.left) / width) + 1)),
    };
  }

  /** Draw what is seen. Call it when values have come. */
  draw() {
    if (!this.box.clientWidth) return; // not on the screen
    const view = this.view();
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = view.width * ratio;
    this.canvas.height = view.height * ratio;
    this.canvas.style.width = `${view.width}px`;
    this.canvas.style.height = `${view.height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.drawView(pen, view, true);
    this.how.onseen?.(this.seen());
  }

  /** What is saved of the map: all of it, or of a large map what is seen. */
  async picture() {
    const { axes, legend, rows, columns, complete } = this.how;
    const isWhole = Math.max(this.size.width, this.size.height) <= MOST_SAVED;
    if (isWhole) await complete?.();
    const size = isWhole ? this.size : this.view();
    const view = isWhole ? { left: 0, top: 0, ...size } : size;
    const part = this.seen(view);
    const last = (first, count, all) => Math.min(first + count, all);
    const note = isWhole ? "" : `Rows ${part.row + 1} to ${last(part.row, part.rows, rows.length)} of ${rows.length}, columns ${part.column + 1} to ${last(part.column, part.columns, columns.length)} of ${columns.length}.`;
    return { lines: axes ? [axesOf(axes)] : [], size, legend, note, draw: (pen) => this.drawView(pen, view, false) };
  }

  /** Draw a view; with the mark of the cell that is told about, if it is for the page. */
  drawView(pen, view, isMarked) {
    const { cell, width, rows, columns, value, scale, write, paint, hidden } = this.how;
    const { width: across, height: down } = view;
    pen.font = FONT;
    const style = getComputedStyle(document.documentElement);
    const [paper, ink, high, bad] = ["--paper", "--ink", "--high", "--bad"].map((name) => style.getPropertyValue(name).trim());
    pen.fillStyle = paper;
    pen.fillRect(0, 0, across, down);
    const range = this.seen(view);
    const inkOn = inks();
    const x = (column) => this.left + column * width - view.left;
    const y = (row) => this.top + row * cell - view.top;
    pen.save();
    pen.beginPath();
    pen.rect(this.left, this.top, across, down);
    pen.clip();
    pen.textBaseline = "middle";
    for (let row = range.row; row < range.row + range.rows; row++) {
      for (let column = range.column; column < range.column + range.columns; column++) {
        const found = value(row, column);
        const grey = hidden?.(row, column);
        const strength = grey || found === null ? 0 : scale(found);
        pen.fillStyle = grey ? "rgb(128, 128, 128)" : strength < 0 ? bad : `rgb(${high})`;
        pen.globalAlpha = grey ? 0.27 : Math.min(1, Math.abs(strength));
        const box = { x: x(column), y: y(row), width: width - (width > 4 ? 1 : 0), height: cell - (cell > 4 ? 1 : 0) };
        if (!paint) pen.fillRect(box.x, box.y, box.width, box.height);
        pen.globalAlpha = 1;
        paint?.(pen, box, row, column);
        const text = write?.(row, column, found);
        if (text) {
          pen.fillStyle = grey || !strength ? ink : inkOn(strength);
          pen.fillText(text, x(column) + 3, y(row) + cell / 2, width - 5);
        }
      }
    }
    pen.strokeStyle = ink;
    pen.lineWidth = 2;
    if (isMarked) pen.strokeRect(x(this.at.column), y(this.at.row), width - 1, cell - 1);
    pen.restore();
    pen.fillStyle = ink;
    pen.textBaseline = "middle";
    pen.save();
    pen.beginPath();
    pen.rect(0, this.top, this.left, down);
    pen.clip();
    const everyRow = Math.ceil(12 / cell);
    for (let row = range.row - (range.row % everyRow); row < range.row + range.rows; row += everyRow) {
      pen.fillText(rows[row], 3, y(row) + cell / 2, this.left - 6);
    }
    pen.restore();
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, across, this.top);
    pen.clip();
    const everyColumn = Math.ceil(12 / width);
    for (let column = range.column - (range.column % everyColumn); column < range.column + range.columns; column += everyColumn) {
      if (this.isShort(pen, columns[column])) {
        const narrow = width < WIDE;
        pen.textAlign = narrow ? "center" : "left";
        pen.fillText(columns[column], x(column) + (narrow ? width / 2 : 3), this.top - 10, width - (narrow ? 0 : 5));
        pen.textAlign = "left";
        continue;
      }
      pen.save();
      pen.translate(x(column) + width / 2, this.top - 4);
      pen.rotate(-Math.PI / 2);
      pen.fillText(columns[column], 0, 0, this.top - 6);
      pen.restore();
    }
    pen.restore();
  }

  /** Tell about a cell. */
  move(row, column) {
    this.at = { row, column };
    this.line.textContent = this.how.tell(row, column, this.how.value(row, column));
    this.how.onmove?.(row, column);
    this.draw();
  }

  /** Tell about the cell again, if one is told about. Call it when its value has come. */
  say() {
    const { row, column } = this.at;
    const said = this.line.textContent && this.how.tell(row, column, this.how.value(row, column));
    if (this.line.textContent !== said) this.line.textContent = said; // what is read aloud is read once
  }

  point(event) {
    const box = this.box.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - this.box.clientLeft - this.left + this.box.scrollLeft) / this.how.width);
    const row = Math.floor((event.clientY - box.top - this.box.clientTop - this.top + this.box.scrollTop) / this.how.cell);
    const inside = row >= 0 && column >= 0 && row < this.how.rows.length && column < this.how.columns.length;
    if (inside && (row !== this.at.row || column !== this.at.column || !this.line.textContent)) this.move(row, column);
    return inside;
  }

  key(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.how.onpick?.(this.at.row, this.at.column);
    }
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const { rows, columns, cell, width } = this.how;
    const row = Math.max(0, Math.min(rows.length - 1, this.at.row + step[0]));
    const column = Math.max(0, Math.min(columns.length - 1, this.at.column + step[1]));
    const [x, y] = [column * width, row * cell];
    const room = { x: this.box.clientWidth - this.left - width, y: this.box.clientHeight - this.top - cell };
    this.box.scrollLeft = Math.max(Math.min(this.box.scrollLeft, x), x - room.x);
    this.box.scrollTop = Math.max(Math.min(this.box.scrollTop, y), y - room.y);
    this.move(row, column);
  }
}

/** What the rows and columns of a map are, in a line. */
export function axesOf(axes) {
  return axes ? `Rows ↓ ${axes.rows} · Columns → ${axes.columns}` : "";
}

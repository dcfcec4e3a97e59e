/** Drawing what the picture of the view "numbers" shows now. */

import { element, inks, visible } from "./text.js";
import { brief } from "./numbercell.js";
import { TOKENS, mapsOf } from "./numberslayout.js";

const FONT = "ui-monospace, monospace";
const ROOM = 38; // pixels: a cell as wide has room for its number

/** Draws a NumbersMap. */
export class Painter {
  constructor(map) {
    this.map = map;
    this.images = new Map(); // by the name of an array: a canvas with a pixel for each cell, and the numbers that it shows
  }

  /** Draw what is in sight: so many pixels across and down. */
  draw(pen, across, down) {
    const colours = coloursNow();
    const { view, layout } = this.map;
    const onScreen = ({ x, y, width, height }) => ({ x: (x - view.x) * view.scale, y: (y - view.y) * view.scale, width: width * view.scale, height: height * view.scale });
    pen.fillStyle = colours.paper;
    pen.fillRect(0, 0, across, down);
    this.drawLines(pen, onScreen, colours);
    pen.font = `10px ${FONT}`;
    pen.textBaseline = "alphabetic";
    pen.fillStyle = colours.faint;
    for (const { text, x, y } of layout.labels) {
      const at = onScreen({ x, y });
      pen.fillText(text, Math.max(4, at.x), at.y - 3);
    }
    for (const box of layout.boxes) {
      const at = onScreen({ ...box, width: box.across });
      if (at.x > across || at.y - 14 > down || at.x + at.width < 0 || at.y + at.height < 0) continue;
      this.drawTitle(pen, box, at, colours);
      for (let head = 0; head < box.heads; head++) {
        const one = onScreen({ ...box, x: box.x + head * box.pitch });
        this.drawMap(pen, box, head, one, [across, down], colours);
        if (!head || TOKENS.has(box.right)) this.drawTokens(pen, box, one, colours);
      }
    }
    this.drawMarks(pen, onScreen, colours);
  }

  /** From each array a line to those that read it. */
  drawLines(pen, onScreen, { line, accent }) {
    const chosen = this.map.marks.cell?.[0];
    for (const [from, to] of this.map.layout.lines) {
      const [a, b] = [from, to].map((box) => onScreen({ ...box, width: box.across }));
      const isLit = chosen && (to.array === chosen || (this.map.gradients && from.array === chosen));
      pen.strokeStyle = isLit ? accent : line;
      pen.lineWidth = isLit ? 2 : 1;
      const isBeside = a.y < b.y + b.height && b.y < a.y + a.height;
      pen.beginPath();
      if (isBeside) {
        const [left, right] = a.x < b.x ? [a, b] : [b, a];
        const [y, z] = [left.y + left.height / 2, right.y + right.height / 2];
        const middle = (left.x + left.width + right.x) / 2;
        pen.moveTo(left.x + left.width, y);
        pen.bezierCurveTo(middle, y, middle, z, right.x, z);
      } else {
        const [x, z] = [a.x + a.width / 2, b.x + b.width / 2];
        const middle = (a.y + a.height + b.y) / 2;
        pen.moveTo(x, a.y + a.height);
        pen.bezierCurveTo(x, middle, z, middle, z, b.y);
      }
      pen.stroke();
    }
  }

  /** The longest of an array's names that has room over it, and its shape if that has, too. */
  drawTitle(pen, { array, free }, at, { ink, faint, paper }) {
    const isParameter = array.kind === "parameter";
    pen.font = `${isParameter ? "italic " : ""}10px ${FONT}`;
    const widthOf = (text) => pen.measureText(text).width;
    const room = at.width + free * this.map.view.scale;
    const [whole, ...others] = namesOf(array);
    const shape = ` ${array.shape.join(" × ")}`;
    const name = widthOf(whole + shape) <= at.width || this.map.isNarrow ? whole : others.find((one) => widthOf(one) <= room);
    if (!name) return;
    const hasShape = widthOf(name + shape) <= room;
    const width = widthOf(hasShape ? name + shape : name);
    const x = Math.max(at.x, Math.min(4, at.x + at.width - width)); // of a map that begins left of what is seen
    const y = Math.max(10, at.y - 4);
    pen.fillStyle = paper;
    pen.fillRect(x - 1, y - 9, width + 2, 11); // lines end before a name
    pen.fillStyle = isParameter ? faint : ink;
    pen.fillText(name, x, y);
    pen.fillStyle = faint;
    if (hasShape) pen.fillText(shape, x + widthOf(name), y);
  }

  /** One map of a box: its image, and where there is room for them the numbers. */
  drawMap(pen, box, head, at, [across, down], colours) {
    const { array, rows, columns } = box;
    if (at.x > across || at.x + at.width < 0) return;
    const [cell, tall] = [at.width / columns, at.height / rows];
    const from = { column: Math.max(0, Math.floor(-at.x / cell)), row: Math.max(0, Math.floor(-at.y / tall)) };
    const to = { column: Math.min(columns, Math.ceil((across - at.x) / cell)), row: Math.min(rows, Math.ceil((down - at.y) / tall)) };
    const [wide, high] = [to.column - from.column, to.row - from.row];
    if (wide <= 0 || high <= 0) return;
    pen.imageSmoothingEnabled = cell < 1 || tall < 1;
    pen.drawImage(this.image(array, colours), from.column, head * rows + from.row, wide, high, at.x + from.column * cell, at.y + from.row * tall, wide * cell, high * tall);
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.strokeRect(at.x - 0.5, at.y - 0.5, at.width + 1, at.height + 1);
    if (cell < ROOM || tall < 12) return;
    const numbers = this.map.numbers(array);
    const strength = strengthOf(numbers);
    const { inks: [onHigh, onOther], ink } = colours;
    pen.font = `${Math.min(13, cell / 5.5, tall * 0.8)}px ${FONT}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let row = from.row; row < to.row; row++) {
      for (let column = from.column; column < to.column; column++) {
        const value = numbers[(head * rows + row) * columns + column];
        pen.fillStyle = Number.isFinite(value) ? (value < 0 ? onOther : onHigh)(strength(value)) : ink;
        pen.fillText(brief(value, 3), at.x + (column + 0.5) * cell, at.y + (row + 0.5) * tall, cell - 3);
      }
    }
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
  }

  /** The tokens beside the rows of a map, and below its columns where these are tokens, too. */
  drawTokens(pen, box, at, { faint, paper }) {
    const { down, right } = box;
    const [cell, tall] = [at.width / box.columns, at.height / box.rows];
    const size = Math.min(12, tall * 0.9);
    pen.font = `${size}px ${FONT}`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    if (tall >= 9 && TOKENS.has(down) && at.x + at.width > 0) {
      this.map.texts.slice(0, box.rows).forEach((text, row) => {
        const y = at.y + (row + 0.5) * tall;
        const width = Math.min(60, pen.measureText(visible(text)).width);
        const x = Math.max(at.x - 4, width + 2); // of a map that begins left of what is seen
        pen.fillStyle = paper;
        if (x > at.x) pen.fillRect(x - width - 2, y - size / 2 - 1, width + 4, size + 2);
        pen.fillStyle = faint;
        pen.fillText(visible(text), x, y, 60);
      });
    }
    pen.fillStyle = faint;
    pen.textAlign = "center";
    if (cell >= 14 && TOKENS.has(right)) this.map.texts.forEach((text, column) => pen.fillText(visible(text), at.x + (column + 0.5) * cell, at.y + at.height + 9, cell));
    pen.textAlign = "left";
    pen.textBaseline = "alphabetic";
  }

  /** An image of an array with a pixel for each cell; its heads stand one under the other. It is drawn once for the same numbers. */
  image(array, colours) {
    const { heads, rows, columns } = mapsOf(array);
    const numbers = this.map.numbers(array);
    let kept = this.images.get(array.name);
    if (kept?.numbers === numbers) return kept.canvas;
    if (kept?.canvas.width !== columns || kept.canvas.height !== heads * rows) {
      const canvas = element("canvas", { width: columns, height: heads * rows });
      const pen = canvas.getContext("2d");
      kept = { canvas, pen, image: pen.createImageData(columns, heads * rows) };
      this.images.set(array.name, kept);
    }
    kept.numbers = numbers;
    paint(kept.image, numbers, colours);
    kept.pen.putImageData(kept.image, 0, 0);
    return kept.canvas;
  }

  /** The chosen cell, and those that it was read from: rows and columns of cells get one frame. */
  drawMarks(pen, onScreen, { accent, mark }) {
    const frame = (box, width, colour, line) => {
      pen.strokeStyle = colour;
      pen.lineWidth = line;
      pen.strokeRect(box.x - 1, box.y - 1, Math.max(3, box.width + 2), Math.max(3, box.height + 2));
    };
    for (const span of this.spans()) frame(onScreen(span), 0, mark, 2);
    if (!this.map.marks.cell) return;
    const [array, place] = this.map.marks.cell;
    const at = onScreen(this.map.cell(this.map.boxes.get(array), place));
    frame({ x: at.x - 2, y: at.y - 2, width: Math.max(at.width, 3) + 4, height: Math.max(at.height, 3) + 4 }, 0, accent, 3);
  }

  /** The cells that are marked as read, joined where they follow each other in a row or a column. */
  spans() {
    const found = [];
    let [before, last] = [null, null];
    for (const [array, place] of this.map.marks.read) {
      const cell = this.map.cell(this.map.boxes.get(array), place);
      const near = (a, b) => Math.abs(a - b) < 1e-6;
      const isNext = last && before === array && ((near(cell.y, last.y) && near(cell.height, last.height) && near(cell.x, last.x + last.width)) || (near(cell.x, last.x) && near(cell.width, last.width) && near(cell.y, last.y + last.height)));
      if (isNext) Object.assign(last, { width: cell.x + cell.width - last.x, height: cell.y + cell.height - last.y });
      else found.push((last = cell));
      before = array;
    }
    return found;
  }
}

const SHORT = {
  attention_norm: "norm", feed_forward_norm: "norm", query_key_value: "q, k, v", token_embedding: "tokens", position_embedding: "places",
  probabilities: "p", losses: "−ln p", queries: "q", keys: "k", values: "v", queries_normed: "q norm", keys_normed: "k norm",
  queries_rotated: "q turned", keys_rotated: "k turned", queries_scaled: "q scaled", joined: "join", constant: "c",
};

/** Names of an array, the longest first. That of a parameter may be "weight" alone, as it stands beside the step that uses it. */
function namesOf({ name, kind }) {
  const last = name.split(".").at(-1);
  if (/^blocks\.\d+$/.test(name)) return [name, "out", "o"]; // of its layer
  return [name, ...(kind === "parameter" ? [name.split(".").slice(-2).join(".")] : []), last, ...(SHORT[last] ? [SHORT[last]] : []), ...(kind === "parameter" ? [last.slice(0, 1)] : [])];
}

/** Give each pixel of an image the colour of its number. */
function paint({ data }, numbers, { low, high, other }) {
  const strength = strengthOf(numbers);
  for (let i = 0, at = 0; i < numbers.length; i++, at += 4) {
    const value = numbers[i];
    const isFinite = Number.isFinite(value);
    const by = strength(value);
    const full = value < 0 ? other : high;
    for (let part = 0; part < 3; part++) data[at + part] = isFinite ? low[part] + (full[part] - low[part]) * by : 128;
    data[at + 3] = isFinite ? 255 : 70;
  }
}

/** What gives the strength of a number's colour, from 0 to 1. */
function strengthOf(numbers) {
  let largest = 0;
  for (const value of numbers) if (Math.abs(value) > largest && Number.isFinite(value)) largest = Math.abs(value);
  return (value) => (largest && Number.isFinite(value) ? Math.sqrt(Math.abs(value) / largest) : 0);
}

function coloursNow() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const rgb = (name) => of(name).split(",").map(Number);
  return { paper: of("paper"), ink: of("ink"), faint: of("faint"), line: of("line"), accent: of("accent"), mark: of("mark"), low: rgb("low"), high: rgb("high"), other: rgb("other"), inks: [inks(), inks("--other")] };
}

/** A grid of small maps: a row for each attention layer, and a button in it for each head. */

import { moveByKeys } from "./gridkeys.js";
import { saveSvg } from "./save.js";
import { element } from "./text.js";

/** The grid. The arrow keys move in it. */
export class HeadGrid {
  /**
   * @param {HTMLElement} parent gets the grid
   * @param {object[]} layers of the answer to the question "attention", each with a "label"
   * @param {(layer: number, head: number|null) => void} onchoose a head was chosen, or a whole layer (null)
   * @param {Element} about says what rows and columns are: for a picture that is saved
   */
  constructor(parent, layers, onchoose, about) {
    this.layers = layers;
    this.maps = [];
    this.rows = layers.map((layer, at) => {
      const whole = element("button", { class: "layer", type: "button", "aria-label": `${layer.label}, all heads`, onclick: () => onchoose(at, null) }, layer.label);
      const heads = layer.maps.map((map, head) => {
        const canvas = element("canvas", { width: layer.columns, height: layer.rows, "aria-hidden": "true" });
        this.maps.push({ canvas, layer, bytes: Uint8Array.from(atob(map), (letter) => letter.charCodeAt(0)) });
        const name = labelOf(layer, head);
        return element("button", { class: "head", type: "button", "aria-label": name, title: name, onclick: () => onchoose(at, head) }, canvas);
      });
      return [whole, ...heads];
    });
    const rows = this.rows.map((buttons) => element("div", { class: "layer-row" }, ...buttons));
    const many = Math.max(...layers.map(({ heads }) => heads)) > 8;
    this.box = element("div", { class: many ? "heads many" : "heads", role: "group", "aria-label": "Layers and heads. Arrow keys move." }, ...rows);
    moveByKeys(this.box);
    parent.replaceChildren(this.box, saveSvg(() => "Attention of all heads", () => [about, this.box]));
    this.draw();
  }

  /** Take the maps of the same layers and heads with other weights. */
  take(layers) {
    layers.flatMap((layer) => layer.maps).forEach((map, at) => {
      this.maps[at].bytes = Uint8Array.from(atob(map), (letter) => letter.charCodeAt(0));
    });
    this.draw();
  }

  /** Colour the maps, as light or dark asks for. A patch that is masked as a whole is grey. */
  draw() {
    for (const { canvas, layer, bytes } of this.maps) paintWeights(canvas, layer, bytes);
  }

  /**
   * Write beneath the maps what the heads are called.
   * @param {HeadNames} names
   */
  name(names) {
    this.layers.forEach((layer, row) => layer.maps.forEach((_, head) => names.mark(this.rows[row][head + 1], layer.name, head, labelOf(layer, head))));
  }

  /**
   * Mark what is chosen.
   * @param {number} layer
   * @param {number|string} head a number, or what all heads of the layer make together
   */
  mark(layer, head) {
    this.rows.forEach((buttons, row) => buttons.forEach((button, column) => {
      const chosen = row === layer && column === (typeof head === "number" ? head + 1 : 0);
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    }));
  }
}

/** Draw the weights of a layer's head, whose square root is the strength of the colour. What is masked is grey. */
export function paintWeights(canvas, { rows, columns, causal }, bytes) {
  const high = getComputedStyle(document.documentElement).getPropertyValue("--high").split(",").map(Number);
  Object.assign(canvas, { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  bytes.forEach((weight, i) => image.data.set(causal && i % columns > i / columns ? [128, 128, 128, 70] : [...high, 255 * Math.sqrt(weight / 255)], 4 * i));
  pen.putImageData(image, 0, 0);
}

/** What a head is called: "layer 1, head 2", and where a layer has one alone "layer 1". */
function labelOf({ label, heads }, head) {
  return heads > 1 ? `${label}, head ${head + 1}` : label;
}

/** A grid of buttons: a row for each block, with its heads and its MLP, each of which switches its part off. */

import { moveByKeys } from "./gridkeys.js";
import { element } from "./text.js";
import { key } from "./parts.js";

/** The grid. The arrow keys move in it. */
export class PartGrid {
  /**
   * @param {HTMLElement} parent gets the grid
   * @param {import("./parts.js").Parts} parts
   */
  constructor(parent, parts) {
    this.parts = parts;
    this.buttons = new Map(); // by the key of their parts
    const make = (part, kind, text, title = parts.label(part)) => {
      const button = element("button", { type: "button", class: kind, title, tabIndex: -1, onclick: () => parts.toggle(part), "aria-label": `Switch off ${title}` }, element("span", {}, text), element("span", { class: "share", "aria-hidden": "true" }));
      this.buttons.set(key(part), { button, part });
      return button;
    };
    this.rows = parts.blocks.map(({ name, attention, network }) => [
      make({ kind: "block", name, index: 0 }, "layer", parts.labels.get(name), `all of ${parts.labels.get(name)}`),
      ...attention.flatMap(({ name: layer, kind, heads }) => Array.from({ length: heads }, (_, index) => make({ kind: "head", name: layer, index }, "part", `${kind === "cross" ? "→" : ""}${index + 1}`))),
      make({ kind: "network", name: network.name, index: 0 }, "part wide", "MLP"),
    ]);
    const rows = this.rows.map((buttons) => element("div", { class: "layer-row" }, ...buttons));
    this.box = element("div", { class: "part-grid", role: "group", "aria-label": "Layers, heads and MLPs. Arrow keys move, Enter switches off and on." }, ...rows);
    moveByKeys(this.box);
    this.box.addEventListener("focusin", (event) => this.reach(event.target.closest("button")));
    parent.replaceChildren(this.box);
    this.reach(this.rows[0][0]);
    this.draw();
  }

  /** Show what is off. */
  draw() {
    for (const { button, part } of this.buttons.values()) button.setAttribute("aria-pressed", String(this.parts.isOff(part)));
  }

  /** Write in the buttons what the heads are called. */
  name() {
    for (const { button, part } of this.buttons.values()) {
      if (part.kind === "head") this.parts.names.mark(button, part.name, part.index, this.parts.label(part), "Switch off ");
    }
  }

  /** Draw a line below each part as long as its share, from 0 to 1, of what is largest. */
  share(part, share) {
    this.buttons.get(key(part)).button.querySelector(".share").style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  }

  /** Tab reaches this button from now on. */
  reach(button) {
    for (const one of this.rows.flat()) one.tabIndex = one === button ? 0 : -1;
  }
}

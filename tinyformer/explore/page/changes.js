/** Predictions before and after a change, as pairs of bars. */

import { saveSvg } from "./save.js";
import { element, number, percent, signed, small, troubleLine, visible } from "./text.js";

const ROUNDING = 1e-10; // nats: float32 rounds logits of some tens by about 1e-5, and a divergence is about the square of that

/** The ten tokens whose probabilities change most, and a line about the whole. */
export class Changes {
  /**
   * @param {HTMLElement} parent gets them
   * @param {() => string} what says what was changed: for a picture that is saved
   */
  constructor(parent, what) {
    this.title = element("h3", {});
    this.rows = element("div", { class: "changes", role: "table", "aria-label": "Probabilities before and after" });
    this.line = element("p", { class: "readout", role: "status" });
    [this.trouble, this.tell] = troubleLine();
    const swatch = (kind) => element("span", { class: `bar ${kind}`, "aria-hidden": "true" });
    const legend = element("p", { class: "note legend" }, swatch("before"), " before ", swatch("after"), " after");
    this.picture = element("div", { hidden: true }, this.title, legend, this.rows, this.line);
    this.picture.append(saveSvg(() => `${this.title.textContent}, ${what()}`, () => [legend, this.rows, this.line]));
    parent.append(this.trouble, this.picture);
  }

  /** Show an answer to the question "ablated" or "edited". */
  show({ tokens, divergence, loss_before: before, loss_after: after }, title) {
    this.picture.hidden = false;
    this.title.textContent = title;
    this.rows.replaceChildren(...tokens.map((token) => rowOf(token)));
    const losses = before === null ? "" : `; loss of the text ${number(before)} → ${number(after)} (${signed(after - before)})`;
    this.line.textContent = `Divergence from the whole model ${small(divergence < ROUNDING ? 0 : divergence)} nats${losses}`;
  }

  refuse(message) {
    this.tell(message);
    if (message) this.picture.hidden = true;
  }
}

function rowOf({ text, before, after }) {
  const bars = element("span", { class: "rail", "aria-hidden": "true" });
  for (const [kind, value] of Object.entries({ before, after })) {
    const bar = element("span", { class: `bar ${kind}` });
    bar.style.width = `${100 * value}%`;
    bars.append(bar);
  }
  const cell = (kind, told) => element("span", { role: "cell", class: kind }, told);
  return element("div", { role: "row" },
    element("span", { role: "rowheader", class: "name" }, visible(text)), bars, cell("number", percent(before)), cell("number", percent(after)));
}

/** Predictions before and after a change, as pairs of bars. */

import { element, number, percent, visible } from "./text.js";

/** The ten tokens whose probabilities change most, and a line about the whole. */
export class Changes {
  /** @param {HTMLElement} parent gets them */
  constructor(parent) {
    this.title = element("h3", {});
    this.rows = element("div", { class: "changes", role: "table", "aria-label": "Probabilities before and after" });
    this.line = element("p", { class: "readout", role: "status" });
    this.trouble = element("p", { class: "trouble", role: "alert", hidden: true });
    const swatch = (kind) => element("span", { class: `bar ${kind}`, "aria-hidden": "true" });
    const legend = element("p", { class: "note legend" }, swatch("before"), " before ", swatch("after"), " after");
    parent.append(this.title, this.trouble, legend, this.rows, this.line);
  }

  /** Show an answer to the question "ablated" or "edited". */
  show({ tokens, divergence, loss_before: before, loss_after: after }, title) {
    this.title.textContent = title;
    this.rows.replaceChildren(...tokens.map((token) => rowOf(token)));
    const losses = before === null ? "" : `; loss of the text ${number(before)} → ${number(after)} (${signed(after - before)})`;
    this.line.textContent = `Divergence from the whole model ${small(divergence)} nats${losses}`;
  }

  refuse(message) {
    this.trouble.textContent = message;
    this.trouble.hidden = !message;
    if (!message) return;
    this.rows.replaceChildren();
    this.line.textContent = "";
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

/** A number with three digits after the point. One that would look like 0 keeps two of its digits. */
function small(x) {
  return x === 0 || x >= 0.0005 ? number(x) : x.toExponential(1);
}

/** A number with its sign, and three digits after the point. */
export function signed(x) {
  const told = Math.abs(x) < 0.0005 ? 0 : x;
  return `${told < 0 ? "−" : "+"}${number(Math.abs(told))}`;
}

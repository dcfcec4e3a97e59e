/** The norms of the residual stream: a map of rows by tokens, and the mean of each row. */

import { ask } from "./api.js";
import { element, number, placed, visible } from "./text.js";
import { tiledMap } from "./tiledmap.js";

const WIDE = 128; // tokens of a question

/**
 * Draw the norms of each stack of blocks.
 * @returns {(() => void)|string} what takes them away, or why there are none
 */
export function drawNorms(box, found) {
  if (!found.stacks.length) return "A recurrent network has no residual stream. Its state is shown below.";
  const maps = found.stacks.map((stack) => drawStack(box, found, stack));
  return () => maps.forEach((map) => map.remove());
}

function drawStack(box, found, stack) {
  const isSource = found.stacks.length > 1 && stack === found.stacks[0];
  const texts = (isSource ? found.passage.sourceTexts : found.texts).map(visible);
  if (found.stacks.length > 1) box.append(element("h3", {}, `${stack.name}, over ${isSource ? "the sentence" : "the translation"}`));
  const place = element("div");
  const means = element("table", { class: "means" });
  means.append(element("caption", {}, "Mean over the tokens"));
  stack.rows.forEach((row, i) => means.append(element("tr", {}, element("th", { scope: "row" }, row), element("td", {}, number(stack.means[i])))));
  box.append(element("div", { class: "beside" }, place, means));
  const [low, high] = [Math.log(Math.max(stack.smallest, 1e-9)), Math.log(Math.max(stack.largest, 1e-9))];
  return tiledMap(place, {
    label: `Norm of the residual stream, ${stack.name}`,
    axes: { rows: "after which layer", columns: "the token" },
    legend: [[0.08, number(stack.smallest)], [0.54, number(Math.exp((low + high) / 2))], [1, number(stack.largest)]],
    rows: stack.rows,
    columns: texts,
    wide: WIDE,
    cell: 26,
    width: 20,
    scale: (value) => 0.08 + 0.92 * (high > low ? (Math.log(Math.max(value, 1e-9)) - low) / (high - low) : 1),
    tell: (row, column, value) => `${stack.rows[row]}, ${placed(texts[column], column + (isSource ? 0 : found.first))}: norm ${number(value)}`,
    load: async (signal, { column, columns }) => {
      const asked = { passage: found.asked, stack: stack.name, first: column, count: columns };
      return (await ask("norms", asked, signal)).norms;
    },
  });
}

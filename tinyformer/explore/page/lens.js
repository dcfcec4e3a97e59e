/** The logit lens: what each layer would predict. */

import { ask, latest } from "./api.js";
import { saveSvg } from "./save.js";
import { element, number, percent, placed, visible } from "./text.js";
import { tiledMap } from "./tiledmap.js";

const WIDE = 32; // tokens of a question
const SEES = "A token that is not masked mostly predicts itself. Mask one (the key M in Write).";

/**
 * Draw the lens, and the ten likeliest tokens of the cell that is chosen.
 * @returns {(() => void)|string} what takes them away, or why there are none
 */
export function drawLens(box, found) {
  if (!found.predicts) return "This model predicts no tokens.";
  if (!found.lens) return "The predictions of this network need more than what a layer gives, so there is no lens.";
  const rows = found.lens;
  const texts = found.texts.map(visible);
  const place = element("div");
  const bars = element("div", { id: "lens-best", role: "status" });
  const save = saveSvg(() => `Likeliest tokens, ${bars.firstChild?.textContent ?? ""}`, () => [bars]);
  save.hidden = true;
  if (found.predicts === "here") box.append(element("p", { class: "note" }, SEES));
  box.append(place, bars, save);
  const after = (column) => (found.predicts === "here" ? "in the place of" : "after");
  const where = (row, column) => `${rows[row]}, ${after(column)} ${placed(texts[column], column + found.first)}`;
  const choose = latest(async (signal, row, column) => {
    const answer = await ask("lens_cell", { passage: found.asked, row, place: column }, signal);
    bars.replaceChildren(element("h3", {}, where(row, column)), ...best(answer));
    save.hidden = false;
  }, (message) => {
    save.hidden ||= Boolean(message);
    if (message) bars.replaceChildren(element("p", { class: "trouble" }, message));
  });
  return tiledMap(place, {
    label: "Likeliest token after each layer",
    axes: { rows: "after which layer", columns: "the token that was read" },
    legend: [[0, "probability 0"], [0.5, "0.5"], [1, "1"]],
    rows,
    columns: texts,
    wide: WIDE,
    cell: 24,
    width: 58,
    pick: (cell) => cell.probability,
    tell: (row, column, value, cell) => `${where(row, column)}: ${cell ? `“${visible(cell.text)}” ${percent(cell.probability)}` : "…"}`,
    write: (row, column, cell) => (cell ? visible(cell.text) : "…"),
    onpick: choose,
    load: async (signal, { column, columns }) => {
      const { ids, texts: written, probabilities } = await ask("lens", { passage: found.asked, first: column, count: columns }, signal);
      return ids.map((row, i) => row.map((id, j) => ({ id, text: written[i][j], probability: probabilities[i][j] })));
    },
  }).remove;
}

/** Ten bars, and a line that says how sure the prediction is. */
function best({ best: tokens, entropy }) {
  const bars = element("div", { class: "bars" });
  for (const { text, probability } of tokens) {
    const bar = element("div", { class: "bar" });
    bar.style.width = `${100 * probability}%`;
    bars.append(element("span", { class: "token" }, visible(text)), bar, element("span", { class: "number" }, percent(probability)));
  }
  return [bars, element("p", { class: "note" }, `Entropy ${number(entropy)} nats`)];
}

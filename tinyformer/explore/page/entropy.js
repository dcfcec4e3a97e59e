/** How sure the model is along the text: the entropy of its predictions, and the losses of the tokens, as bars. */

import { ask } from "./api.js";
import { element, number, visible } from "./text.js";
import { tiledMap } from "./tiledmap.js";

const WIDE = 128; // tokens of a question
const ROWS = ["entropy", "loss"];

/**
 * Draw the bars.
 * @returns {(() => void)|string} what takes them away, or why there are none
 */
export function drawEntropy(box, found) {
  if (!found.predicts) return "This model predicts no tokens.";
  const texts = found.texts.map(visible);
  const isHere = found.predicts === "here";
  const full = Math.log(found.facts.settings.target_vocab_size ?? found.facts.settings.vocab_size); // nats of a uniform guess
  const tell = (row, column, value) => {
    const token = `“${texts[column]}” (place ${column + 1 + found.first})`;
    if (row === 0) return `${isHere ? "In the place of" : "After"} ${token}: entropy ${number(value)} nats`;
    const target = isHere ? texts[column] : texts[column + 1];
    return target === undefined ? `After ${token}: nothing follows, so there is no loss` : `${isHere ? "In the place of" : "After"} ${token}: loss of “${target}” ${number(value)} nats`;
  };
  box.append(element("p", { class: "note" }, `A bar of full height is ${number(full)} nats or more: the entropy of a blind guess among all tokens.`));
  return tiledMap(box, {
    label: "Entropy of each prediction, and loss of each token",
    rows: ROWS,
    columns: texts,
    wide: WIDE,
    cell: 72,
    width: 20,
    tell,
    paint: (pen, { x, y, width, height }, row, column, value) => {
      if (value === null) return;
      const style = getComputedStyle(document.documentElement);
      const tall = Math.max(1, Math.min(1, value / full) * (height - 2));
      pen.fillStyle = row === 0 ? `rgb(${style.getPropertyValue("--high")})` : style.getPropertyValue("--faint");
      pen.fillRect(x + 1, y + height - tall, width - 2, tall);
    },
    load: async (signal, { column, columns }) => {
      const { entropies, losses } = await ask("entropies", { passage: found.asked, first: column, count: columns }, signal);
      return [entropies, losses];
    },
  }).remove;
}

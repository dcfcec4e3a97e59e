/** How sure the model is along the text: the entropy of its predictions, and the losses of the tokens, as bars. */

import { ask } from "./api.js";
import { element, number, placed, visible } from "./text.js";
import { tiledMap } from "./tiledmap.js";

const WIDE = 128; // tokens of a question
const FEW = 16; // of one about hidden tokens, as each takes a pass
const QUICK = 2e10; // products of numbers that nobody has to ask for: some tenths of a second
const ROWS = ["entropy", "loss"];

/**
 * Draw the bars.
 * @returns {(() => void)|string} what takes them away, or why there are none
 */
export function drawEntropy(box, found) {
  if (!found.predicts) return "This model predicts no tokens.";
  return found.predicts === "here" ? drawHidden(box, found) : drawBars(box, found, WIDE);
}

/** The bars of a BERT: each token is hidden in turn. Where that takes long, they wait until they are asked for. */
function drawHidden(box, found) {
  const count = found.texts.length;
  box.append(element("p", { class: "note" }, "Pseudo-log-likelihood: each token is masked in turn (Salazar et al. 2020)."));
  if (found.facts.parameters * count ** 2 <= QUICK) return drawBars(box, found, FEW);
  let remove = () => {};
  const button = element("button", { type: "button" }, `Hide each token in turn (${count} passes)`);
  button.addEventListener("click", () => {
    button.remove();
    remove = drawBars(box, found, FEW);
  });
  box.append(button);
  return () => remove();
}

function drawBars(box, found, wide) {
  const texts = found.texts.map(visible);
  const isHere = found.predicts === "here";
  const full = Math.log(found.facts.settings.target_vocab_size ?? found.facts.settings.vocab_size); // nats of a uniform guess
  const tell = (row, column, value, isKnown) => {
    const token = placed(texts[column], column + found.first);
    if (isHere && isKnown && value === null) return `${token}: ${row === 0 ? "it stands around each text, and is not predicted" : "there is no token to be found here"}`;
    if (row === 0) return `${isHere ? "In the place of" : "After"} ${token}: entropy ${number(value)} nats`;
    const target = isHere ? texts[column] : texts[column + 1];
    return target === undefined ? `After ${token}: nothing follows, so there is no loss` : `${isHere ? "In the place of" : "After"} ${token}: loss of “${target}” ${number(value)} nats`;
  };
  const scale = `Full height: ${number(full)} nats, the entropy of a uniform guess.`;
  box.append(element("p", { class: "note" }, scale));
  return tiledMap(box, {
    label: "Entropy of each prediction, and loss of each token",
    axes: { rows: `entropy and loss, in nats; full height is ${number(full)}`, columns: isHere ? "the token that is hidden" : "the token that was read" },
    rows: ROWS,
    columns: texts,
    wide,
    cell: 72,
    width: 20,
    pick: ({ value }) => value,
    tell: (row, column, value, cell) => tell(row, column, value, cell !== null),
    paint: (pen, { x, y, width, height }, row, column, cell) => {
      if (!cell || cell.value === null) return;
      const style = getComputedStyle(document.documentElement);
      const tall = Math.max(1, Math.min(1, cell.value / full) * (height - 2));
      pen.fillStyle = row === 0 ? `rgb(${style.getPropertyValue("--high")})` : style.getPropertyValue("--faint");
      pen.fillRect(x + 1, y + height - tall, width - 2, tall);
    },
    load: async (signal, { column, columns }) => {
      const { entropies, losses } = await ask("entropies", { passage: found.asked, first: column, count: columns }, signal);
      return [entropies, losses].map((row) => row.map((value) => ({ value })));
    },
  }).remove;
}

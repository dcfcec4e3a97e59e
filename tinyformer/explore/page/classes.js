/** What a model with a head says of a text: bars of its classes, or a map of those of each token. A part of the view "write". */

import { ask, latest } from "./api.js";
import { HeatMap } from "./heatmap.js";
import { page } from "./state.js";
import { saveSvg } from "./save.js";
import { element, number, percent, placed, troubleLine, visible } from "./text.js";

const NO_HEAD = "This model predicts no tokens and no classes: it turns each token of a text into a vector. The other views show how it reads.";
const SAYS = {
  text: "This model tells classes of texts: how likely it holds each for the text above. Of a pair of texts write the first, [SEP] and the second.",
  tokens: "This model tells classes of tokens: how likely it holds each for each token of the text above.",
  places: "This model finds answers: how likely one starts, and ends, at each token. Write the question, [SEP] and the text.",
};

let note, trouble, refuse, place;
let drawn = null; // the passage that is shown, or asked about
let map = null;

/** Fill this part of the view once. */
export function begin(part) {
  note = element("p", { class: "note" });
  [trouble, refuse] = troubleLine();
  place = element("div", { id: "classes" });
  part.append(note, trouble, place);
}

/** Draw what the page holds now. */
export function show() {
  if (drawn === page.passage) map?.draw();
  else load((drawn = page.passage));
}

const load = latest(async (signal, passage) => {
  const hasHead = page.facts.labels !== null;
  if (!hasHead) clear();
  note.textContent = NO_HEAD;
  if (!hasHead) return;
  const found = await ask("classes", { passage: page.asked() }, signal);
  clear();
  note.textContent = SAYS[found.of];
  if (found.of === "text") drawText(found);
  else drawTokens(found, passage.texts.map(visible));
}, (message) => {
  refuse(message);
  if (message) clear();
});

function clear() {
  map?.remove();
  map = null;
  place.replaceChildren();
}

/** A bar for each class, the likeliest first; of a model with one class its number. */
function drawText({ labels, probabilities, value }) {
  if (value !== null) {
    place.append(element("p", { class: "readout" }, `${labels[0]}: ${number(value)}. The model gives one number, which is no probability.`));
    return;
  }
  const bars = element("div", { class: "bars", role: "group", "aria-label": "The probabilities of the classes" });
  const order = [...labels.keys()].sort((a, b) => probabilities[b] - probabilities[a]);
  for (const i of order) {
    const bar = element("div", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${100 * probabilities[i]}%`;
    bars.append(element("span", {}, labels[i]), bar, element("span", { class: "number" }, percent(probabilities[i])));
  }
  place.append(element("h3", {}, "The classes of the text"), bars, saveSvg(() => "The classes of the text", () => [bars]));
}

function drawTokens({ of, labels, probabilities }, texts) {
  map = new HeatMap(place, {
    label: of === "places" ? "Where an answer starts and ends" : "The classes of each token",
    axes: { rows: of === "places" ? "start and end of the answer" : "the class", columns: "the token" },
    legend: [[0, "probability 0"], [0.5, "0.5"], [1, "1"]],
    rows: labels,
    columns: texts,
    cell: 22,
    value: (row, column) => probabilities[row][column],
    tell: (row, column, value) => `${placed(texts[column], column)}: ${labels[row]} ${percent(value)}`,
  });
}

/** What two models predict next: the bars of their likeliest tokens, or of the classes of the text. A part of the view "compare". */

import { passageOf } from "./comparekept.js";
import { Refusal, ask, latest } from "./api.js";
import { page } from "./state.js";
import { saveSvg } from "./save.js";
import { element, number, percent, troubleLine, visible } from "./text.js";

const part = {}; // the elements, by name
let other = ""; // the name of model B

/** Fill this part of the view once. */
export function begin(box) {
  [part.trouble, part.refuse] = troubleLine();
  part.title = element("h2", {});
  part.next = element("div", {});
  part.picture = element("div", { hidden: true }, part.title, part.next, saveSvg(() => `${part.title.textContent}, A ${page.shown} and B ${other}`, () => [part.next]));
  box.append(part.trouble, part.picture);
}

/** Say of what the predictions are. */
export function entitle(title) {
  part.title.textContent = title;
}

/** Compare model A with another one. */
export const compareNext = latest(async (signal, name) => {
  other = name;
  const a = await passageOf(page.model, signal);
  const b = await passageOf(name, signal);
  if (page.facts.kind === "encoder") part.next.replaceChildren(await classesOfBoth(a, b, signal));
  else {
    const found = await ask("divergence", { a, b }, signal);
    part.next.replaceChildren(...(found.alike ? together(found) : apart(found)));
  }
  part.picture.hidden = false;
}, (message) => {
  if (message) part.picture.hidden = true;
  part.refuse(message);
});

/** The likeliest tokens of either, each with a bar for A and one for B. */
function together({ tokens, a, b, a_to_b, b_to_a }) {
  const rows = element("div", { class: "pairs", role: "table", "aria-label": "The likeliest next tokens of A and of B" });
  rows.append(line("", head("A"), head("B")));
  for (const { text, a, b } of tokens) rows.append(line(visible(text), bar(a, ""), bar(b, "other")));
  const nats = `D(A ‖ B) = ${number(a_to_b)} nats, D(B ‖ A) = ${number(b_to_a)} nats`;
  return [
    rows,
    element("p", { class: "readout", id: "divergence" }, `Kullback-Leibler divergence: ${nats}. Entropy: A ${number(a.entropy)}, B ${number(b.entropy)} nats.`),
  ];
}

/** The classes of the text, likeliest under A first, each with a bar for A and one for B. */
async function classesOfBoth(a, b, signal) {
  const [one, two] = [await ask("classes", { passage: a }, signal), await ask("classes", { passage: b }, signal)];
  if ([one, two].some(({ of, value }) => of !== "text" || value !== null)) throw new Refusal("Only probabilities of classes of a whole text are compared here. What a model says of each token is in Write.");
  if (one.labels.join("\n") !== two.labels.join("\n")) throw new Refusal("The models tell different classes, which cannot be compared.");
  const rows = element("div", { class: "pairs", role: "table", "aria-label": "The classes of the text under A and B" }, line("", head("A"), head("B")));
  const order = [...one.labels.keys()].sort((i, j) => one.probabilities[j] - one.probabilities[i]);
  for (const i of order) rows.append(line(one.labels[i], bar(one.probabilities[i], ""), bar(two.probabilities[i], "other")));
  return rows;
}

/** For models with different tokens: the likeliest of each by itself. */
function apart({ a, b }) {
  const column = (name, { best, entropy }, kind) => {
    const rows = element("div", { class: "pairs single", role: "table", "aria-label": `The likeliest next tokens of ${name}` }, line("", head(name)));
    for (const { text, probability } of best) rows.append(line(visible(text), bar(probability, kind)));
    return element("div", {}, rows, element("p", { class: "readout" }, `Entropy: ${number(entropy)} nats`));
  };
  return [
    element("div", { class: "both" }, column("A", a, ""), column("B", b, "other")),
    element("p", { class: "note", id: "divergence" }, "The models have different tokens, so there is no divergence of their distributions."),
  ];
}

function line(name, ...cells) {
  return element("div", { role: "row" }, element("span", { class: "name", role: "rowheader" }, name), ...cells);
}

function head(name) {
  return element("span", { class: "head", role: "columnheader" }, name);
}

function bar(probability, kind) {
  const filled = element("span", { class: `bar ${kind}` });
  filled.style.width = `${100 * probability}%`;
  return element("span", { class: "cell", role: "cell" }, element("span", { class: "room", "aria-hidden": "true" }, filled), element("span", { class: "number" }, percent(probability)));
}

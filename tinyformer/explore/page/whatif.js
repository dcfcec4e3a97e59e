/** The view "what if": parts of the model are switched off or replaced, and its predictions change. */

import { ask, latest } from "./api.js";
import { page } from "./state.js";
import { element, visible } from "./text.js";
import { newest } from "./newest.js";
import { Parts } from "./parts.js";
import { PartGrid } from "./partgrid.js";
import { Changes } from "./changes.js";
import { RankingTable } from "./ranking.js";
import { RowEditor } from "./editrow.js";
import { Patching } from "./patching.js";

const SMALL = { parameters: 5_000_000, tokens: 300 }; // what is ranked without being asked
const WAYS = {
  zero: ["Zero", "it gives nothing"],
  mean: ["Mean", "it gives the same at each token: its mean over the text"],
  choice: ["Mean attention", "a head looks alike from each token; all else gives its mean"],
};

const part = {}; // the elements of the view, by name
let parts = null; // of the model that is looked at
let grid = null;
let changes = null;
let ranking = null;
let editor = null;
let patching = null;
let drawn = { passage: null, facts: null };

/** Fill the section of this view once. */
export function begin(section) {
  part.note = element("p", { class: "note" });
  part.trouble = element("p", { class: "trouble", role: "alert", hidden: true });
  part.grid = element("div", { class: "heads-box" });
  part.off = element("p", { class: "note", id: "whatif-off", role: "status" });
  part.body = element("div", { hidden: true }, switching(), ranked(), edited(), patched());
  section.append(part.note, part.trouble, part.body);
}

function switching() {
  const radio = (way) => element("label", {},
    element("input", { type: "radio", name: "whatif-way", value: way, checked: way === "zero", onchange: () => parts.replace(way) }), ` ${WAYS[way][0]} `, element("span", { class: "note" }, WAYS[way][1]));
  part.ways = element("fieldset", { class: "ways" }, element("legend", {}, "What takes the place of a part that is off"), ...Object.keys(WAYS).map(radio));
  part.clear = element("button", { type: "button", onclick: () => parts.clear() }, "Switch all on");
  part.block = element("select", { "aria-label": "Block of the neuron" });
  part.neuron = element("input", { type: "number", min: 0, value: 0, required: true, "aria-label": "Neuron" });
  const neuron = element("button", { type: "button", onclick: () => toggleNeuron() }, "Switch off or on");
  const left = element("div", {}, part.ways, part.grid,
    element("div", { class: "controls" }, element("label", {}, "A neuron of ", part.block), element("label", {}, "Number ", part.neuron), neuron, part.clear), part.off);
  const right = element("div", { id: "whatif-changes" });
  changes = new Changes(right);
  return element("section", { "aria-labelledby": "whatif-title" }, element("h2", { id: "whatif-title" }, "Switch parts off"),
    element("p", { class: "note" }, "A row of buttons is a block: its heads by number, and its MLP. The first button switches off the whole block, so that what it gets passes on unchanged."),
    element("div", { class: "side" }, left, right));
}

function ranked() {
  const box = element("section", { "aria-labelledby": "ranking-title", id: "whatif-ranking" }, element("h2", { id: "ranking-title" }, "What the text needs most"),
    element("p", { class: "note" }, "Each head and each MLP is switched off alone, once by zero and once by its mean. The number is by how much the mean loss of the text’s tokens grows (for a BERT, how far the prediction of the mask moves): the larger, the more the model needs the part here. The line in a button above is as long as the square root of it."));
  ranking = new RankingTable(box, share);
  return box;
}

function edited() {
  const box = element("section", { "aria-labelledby": "row-title", id: "whatif-row" }, element("h2", { id: "row-title" }, "Let a head look elsewhere"),
    element("p", { class: "note" }, "A slider is the weight of a token that is looked at. Move one, and the others share the rest as before, so that the row still sums to 1. Nothing is switched off here."));
  editor = new RowEditor(box, ({ place }) => titleOf(place));
  return box;
}

function patched() {
  const box = element("section", { "aria-labelledby": "patching-title", id: "whatif-patching" }, element("h2", { id: "patching-title" }, "Two prompts"),
    element("p", { class: "note" }, "Prompt A is the text at the head of the page. Type another with as many tokens, such as with another name in it. Then the model reads A many times, each time with what one block gives at one token taken from B (activation patching): where that changes the prediction, the model holds what tells the prompts apart."));
  patching = new Patching(box);
  return box;
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  const { passage, facts } = page;
  if (!passage || drawn.passage === passage) return;
  const other = drawn.facts !== facts;
  drawn = { passage, facts };
  load(passage, other);
}

const load = latest(async (signal, passage, other) => {
  if (other) {
    part.why = "";
    const { blocks, why } = await ask("blocks", { model: passage.model }, signal);
    part.why = why;
    parts = null;
    if (why === null) take(blocks);
  }
  const why = part.why ?? unpredicted(passage);
  part.note.textContent = why ?? "Switch off a part of the model, and see what it would predict without it.";
  part.body.hidden = why !== null;
  if (why !== null) return;
  ranking.prepare(parts, page.asked(), false);
  editor.prepare(layersOf(passage), page.asked());
  patching.prepare(passage, page.asked(), page.text);
  if (await compare(page.asked()) && page.facts.parameters <= SMALL.parameters && passage.ids.length <= SMALL.tokens) ranking.run(page.asked());
}, (message) => {
  part.trouble.textContent = message;
  part.trouble.hidden = !message;
  if (message) drawn = { passage: null, facts: null };
});

/** Why there is no prediction for this passage, in a sentence; null if there is one. */
function unpredicted({ ids }) {
  const { kind, mask, mask_name: name } = page.facts;
  return kind === "masked" && !ids.includes(mask) ? `There is no ${name} in the text: put one where a token is to be predicted.` : null;
}

/** Take over the blocks of another model. */
function take(blocks) {
  const { way } = parts ?? { way: part.ways.querySelector("input:checked").value };
  parts = new Parts(blocks);
  parts.way = way;
  grid = new PartGrid(part.grid, parts);
  part.block.replaceChildren(...blocks.map(({ name, network }) => new Option(parts.labels.get(name), network.name)));
  part.block.onchange = () => (part.neuron.max = blocks.find(({ network }) => network.name === part.block.value).network.neurons - 1);
  part.block.onchange();
  parts.addEventListener("change", changed);
  tellOff();
}

/** The attention layers, each with the tokens that look and those that are looked at. */
function layersOf(passage) {
  const { kind, longest } = page.facts;
  const target = kind === "language" && longest ? passage.texts.slice(-longest) : passage.texts;
  return parts.blocks.flatMap(({ name: block, stack, attention }) => attention.map(({ name, kind: looks, heads }) => ({
    name,
    heads,
    label: `${parts.labels.get(block)}${looks === "cross" ? " to source" : ""}`,
    queries: stack === "encoder" ? passage.sourceTexts : target,
    keys: stack === "encoder" || looks === "cross" ? passage.sourceTexts : target,
  })));
}

function changed() {
  grid.draw();
  ranking.draw();
  tellOff();
  compare(page.asked());
}

function tellOff() {
  const off = [...parts.off.values()].map((one) => parts.label(one));
  part.off.textContent = off.length ? `Off: ${off.join("; ")}.` : "Nothing is off.";
  part.clear.disabled = !off.length;
}

function toggleNeuron() {
  const bad = !part.neuron.checkValidity();
  part.neuron.setAttribute("aria-invalid", String(bad));
  if (!bad) parts.toggle({ kind: "neuron", name: part.block.value, index: Number(part.neuron.value) });
}

let known = false; // whether the last question had an answer

const compareNow = newest(async (passage) => {
  known = false;
  const found = await ask("ablated", { passage, off: parts.asked() });
  changes.show(found, titleOf(found.place));
  known = true;
}, (message) => changes.refuse(message));

/** Show the predictions. Returns whether there are some. */
async function compare(passage) {
  await compareNow(passage);
  return known;
}

function titleOf(place) {
  const token = `“${visible(page.passage.texts[place])}” (place ${place + 1})`;
  return page.facts.kind === "masked" ? `In the place of ${token}` : `After ${token}`;
}

/** Lines in the grid for what is ranked so far. Their length is the square root, so that small numbers can be seen. */
function share(found) {
  const largest = Math.max(...found.map(({ zero }) => zero), 1e-9);
  for (const line of found) grid.share(line, Math.sqrt(Math.max(0, line.zero) / largest));
}

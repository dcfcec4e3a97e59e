/** The view "what if": parts of the model are switched off or replaced, and its predictions change. */

import { addressed } from "./address.js";
import { ask, latest, newest } from "./api.js";
import { page } from "./state.js";
import { about, element, placed, troubleLine } from "./text.js";
import { headNames } from "./headnames.js";
import { Parts } from "./parts.js";
import { PartGrid } from "./partgrid.js";
import { Changes } from "./changes.js";
import { RankingTable } from "./ranking.js";
import { RowEditor } from "./editrow.js";
import { Patching } from "./patching.js";
import { saveSvg } from "./save.js";

const SMALL = { parameters: 5_000_000, tokens: 300 }; // what is ranked without being asked
const WAYS = {
  zero: ["Zero", ""],
  mean: ["Mean", "over the text"],
  choice: ["Mean attention", "of heads"],
};

const part = {}; // the elements of the view, by name
let parts = null; // of the model that is looked at
let grid = null;
let changes = null;
let ranking = null;
let editor = null;
let patching = null;
const NOTHING = Object.fromEntries(["by", "off", "layer", "head", "token", "row", "b", "measured"].map((key) => [key, null]));
let drawn = null; // the passage that is shown, or asked about
let taken = { model: "", facts: null, why: null }; // the model whose blocks are here, or why it has none
let isReady = false; // whether the passage has been taken over
let current = null; // what was taken over last: {asked, titleOf}, the passage as questions take it, and titles of their answers
let linked = null; // what an address says, until it is shown
const remember = addressed("whatif", ["by", "off", "layer", "head"], (values) => (linked = values));

/** Fill the section of this view once. */
export function begin(section) {
  part.note = element("p", { class: "note" });
  [part.trouble, part.refuse] = troubleLine();
  part.grid = element("div", { class: "heads-box" });
  part.off = element("p", { class: "note", id: "whatif-off", role: "status" });
  part.body = element("div", { hidden: true }, switching(), ranked(), edited(), patched());
  section.append(part.note, part.trouble, part.body);
}

function switching() {
  const radio = (way) => element("label", {},
    element("input", { type: "radio", name: "whatif-way", value: way, checked: way === "zero", onchange: () => parts.replace(way) }), ` ${WAYS[way][0]} `, element("span", { class: "note" }, WAYS[way][1]));
  part.ways = element("fieldset", { class: "ways" }, element("legend", {}, "Replace by"), ...Object.keys(WAYS).map(radio));
  part.clear = element("button", { type: "button", onclick: () => parts.clear() }, "Switch all on");
  part.block = element("select", { "aria-label": "Layer of the neuron" });
  part.neuron = element("input", { type: "number", min: 1, value: 1, required: true, "aria-label": "Neuron" });
  const neuron = element("button", { type: "button", onclick: () => toggleNeuron() }, "Switch off or on");
  const save = saveSvg(() => "The parts of the model that are on and off", () => [part.grid, part.off]);
  const left = element("div", {}, part.ways, part.grid, part.off, save,
    element("div", { class: "controls" }, element("label", {}, "A neuron of ", part.block), element("label", {}, "Number ", part.neuron), neuron, part.clear));
  const right = element("div", { id: "whatif-changes" });
  changes = new Changes(right, () => part.off.textContent);
  return element("section", { "aria-labelledby": "whatif-title" }, element("h2", { id: "whatif-title" }, "Ablation"),
    about("Switch off layers, heads and MLPs", "Each row is a layer: the whole layer, its heads by number, and its MLP. Without a layer, the residual stream passes unchanged."),
    element("div", { class: "side" }, left, right));
}

function ranked() {
  const box = element("section", { "aria-labelledby": "ranking-title", id: "whatif-ranking" }, element("h2", { id: "ranking-title" }, "Importance"),
    about("Increase of the loss without each part", "Each head and MLP is switched off alone, by zero and by its mean. For a BERT it is the divergence of the prediction at the mask. The line in a button above is as long as the square root."));
  ranking = new RankingTable(box, share);
  return box;
}

function edited() {
  const box = element("section", { "aria-labelledby": "row-title", id: "whatif-row" }, element("h2", { id: "row-title" }, "Edit attention"),
    about("Weights of one query", "Move a slider: the other weights are scaled so that the row sums to 1. Nothing is switched off here."));
  editor = new RowEditor(box);
  editor.addEventListener("change", () => tell());
  return box;
}

function patched() {
  const box = element("section", { "aria-labelledby": "patching-title", id: "whatif-patching" }, element("h2", { id: "patching-title" }, "Activation patching"),
    about("One layer’s output at one token of A, replaced by that of B", "Prompt A is the text above. Type a prompt B with as many tokens, such as with another name. Where a cell changes the prediction, the model holds what tells the prompts apart."));
  patching = new Patching(box);
  patching.addEventListener("change", () => tell());
  return box;
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  const { passage } = page;
  if (!passage) return;
  if (drawn !== passage) load((drawn = passage));
  else if (linked && isReady) follow();
}

const load = latest(async (signal, passage) => {
  isReady = false;
  const { model, facts } = page;
  if (taken.facts !== facts) {
    const { blocks, why } = await ask("blocks", { model }, signal);
    take(why === null ? blocks : null, taken.model !== model);
    taken = { model, facts, why };
  }
  const why = taken.why ?? unpredicted(passage);
  part.note.textContent = why ?? "";
  part.note.hidden = why === null;
  part.body.hidden = why !== null;
  const asked = page.asked();
  const wanted = linked ?? (why === null && JSON.stringify(asked) === JSON.stringify(current?.asked) ? kept() : {});
  if (why === null && linked) parts.follow(linked);
  linked = null;
  if (why !== null) {
    ranking.cancel("");
    remember(NOTHING, false);
    return;
  }
  isReady = true;
  current = { asked, titleOf: titles(passage, facts) };
  ranking.prepare(parts, asked);
  editor.prepare(layersOf(passage), current, wanted);
  patching.prepare(passage, asked, page.text, wanted);
  draw();
  tell(false);
  const isKnown = await compare();
  if (signal.aborted) return;
  nameHeads();
  if (isKnown && facts.parameters <= SMALL.parameters && passage.ids.length <= SMALL.tokens) ranking.run(asked);
}, (message) => {
  part.refuse(message);
  if (message) drawn = null;
});

/** Show what an address says of the text and the model that are here. */
function follow() {
  const wanted = linked;
  linked = null;
  const isOther = (own) => Object.entries(own).some(([key, value]) => String(value ?? "") !== (wanted[key] ?? ""));
  if (isOther(parts.told())) {
    parts.follow(wanted);
    draw();
    compare();
  }
  for (const one of [editor, patching]) if (isOther(one.told())) one.follow(wanted);
  tell(false);
}

/** What is chosen in the row and in the prompts, as an address says it: it stays where only the weights are new. */
function kept() {
  return Object.fromEntries(Object.entries({ ...editor.told(), ...patching.told() }).filter(([, value]) => value !== null));
}

/** Put into the address what is chosen. */
function tell(canStep = true) {
  if (isReady) remember({ ...parts.told(), ...editor.told(), ...patching.told() }, canStep);
}

/** Write at the heads what they are called, once that is known. */
async function nameHeads() {
  const own = parts;
  own.names ??= await headNames().catch(() => null); // without names all works as well
  if (own !== parts || !own.names) return;
  grid.name();
  ranking.draw();
  editor.name(own.names);
}

/** Why there is no prediction for this passage, in a sentence; null if there is one. */
function unpredicted({ ids }) {
  const { kind, mask, mask_name: name } = page.facts;
  return kind === "masked" && !ids.includes(mask) ? `The text has no ${name}. Insert one where you want a prediction.` : null;
}

/** Take over the blocks of a model, if it has some. Where only its weights are new, what is off stays off. */
function take(blocks, isOther) {
  const before = { by: part.ways.querySelector(":checked").value, off: isOther ? "" : parts?.told().off };
  parts = blocks && new Parts(blocks);
  if (!parts) return;
  parts.follow(before);
  grid = new PartGrid(part.grid, parts);
  editor.name(null); // the names of another model
  part.block.replaceChildren(...blocks.map(({ name, network }) => new Option(parts.labels.get(name), network.name)));
  part.block.onchange = () => (part.neuron.max = blocks.find(({ network }) => network.name === part.block.value).network.neurons);
  part.block.onchange();
  parts.addEventListener("change", changed);
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
  draw();
  tell();
  compare();
}

/** Show what is off, and in which way. */
function draw() {
  grid.draw();
  ranking.draw();
  part.ways.querySelector(`[value=${parts.way}]`).checked = true;
  const off = [...parts.off.values()].map((one) => parts.label(one));
  part.off.textContent = off.length ? `Off: ${off.join("; ")}.` : "Nothing is off.";
  part.clear.disabled = !off.length;
}

function toggleNeuron() {
  const bad = !part.neuron.checkValidity();
  part.neuron.setAttribute("aria-invalid", String(bad));
  if (!bad) parts.toggle({ kind: "neuron", name: part.block.value, index: part.neuron.value - 1 });
}

let known = false; // whether the last question had an answer

const compareNow = newest(async (of, off) => {
  known = false;
  const found = await ask("ablated", { passage: of.asked, off });
  if (of !== current) return; // another text was taken over meanwhile
  changes.show(found, of.titleOf(found));
  known = true;
}, (message) => changes.refuse(message));

/** Show the predictions. Returns whether there are some. */
async function compare() {
  await compareNow(current, parts.asked());
  return known;
}

/** What the predictions for a passage are of, as a function of an answer. The passage of the page may be another one by then. */
function titles({ texts }, { kind }) {
  return ({ place }) => `${kind === "masked" ? "In the place of" : "After"} ${placed(texts[place], place)}`;
}

/** Lines in the grid for what is ranked so far. Their length is the square root, so that small numbers can be seen. */
function share(found) {
  const largest = Math.max(...found.map(({ zero }) => zero), 1e-9);
  for (const line of found) grid.share(line, Math.sqrt(Math.max(0, line.zero) / largest));
}

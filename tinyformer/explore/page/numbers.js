/** The view "numbers": the whole forward pass of a small GPT, array by array, and each number with what it was computed from. */

import { addressed } from "./address.js";
import { ask, bytes, latest } from "./api.js";
import { brief, cellInWords, cellsBehind, drawCell, indicesOf } from "./numbercell.js";
import { LEGEND, NumbersMap } from "./numbersmap.js";
import { mapsOf } from "./numberslayout.js";
import { Pass } from "./pass.js";
import { Program } from "./program.js";
import { readSafetensors } from "./safetensors.js";
import { page } from "./state.js";
import { counted, element, troubleLine } from "./text.js";

const MOST_TOKENS = 32;
const KEYS = "Arrow keys: the next cell; with Shift they move the picture. Page up and page down: the array before and after. Enter: the " +
  "largest number that it was read from. + and −: zoom; Z: this cell; 0: the whole. G: gradients. Escape: no cell.";

const part = {}; // the elements of the view, by name
const chosen = { array: "", cell: "", gradients: false }; // the name of an array and the indices of a cell, "2.5.17"
let map = null;
let shown = null; // the passage, the pass, the texts of its tokens, and the gradients once they are asked for
let weights = null; // of the model whose facts they were asked for with

const remember = addressed("numbers", ["array"], ({ array = "", cell = "", gradients }) => {
  Object.assign(chosen, { array, cell, gradients: gradients === "1" });
  if (shown?.passage === page.passage) showChosen(true);
});

let wanted = null; // a cell of the residual stream that is shown once the pass is there

/** Choose the wanted cell. */
function takeWanted() {
  if (!wanted || shown?.passage !== page.passage) return;
  const { arrays } = shown.pass;
  const { layer, token, unit } = wanted;
  const begin = arrays.findIndex(({ name }) => name.startsWith("blocks."));
  const array = layer ? byName(`blocks.${layer - 1}`) : arrays.slice(0, begin).findLast(({ source }) => source);
  wanted = null;
  if (array && token < array.shape[0]) choose(array, token * array.shape[1] + unit, true);
  look();
}

/** Fill the section of this view once. */
export function begin(section) {
  const make = (name, kind, properties = {}, ...children) => (part[name] = element(kind, properties, ...children));
  const button = (name, text, title, act) => make(name, "button", { type: "button", title, onclick: act }, text);
  const [trouble, refuse] = troubleLine();
  part.refuse = refuse;
  make("note", "p", { class: "note", id: "numbers-note" });
  make("arrays", "select", { id: "numbers-array" });
  part.arrays.addEventListener("change", () => {
    choose(byName(part.arrays.value), 0, true);
    look();
  });
  const zooms = element("div", { class: "zooms", role: "group", "aria-label": "Zoom" },
    button("whole", "Whole", "Show all arrays (0)", () => map.whole()),
    button("out", "−", "Zoom out (−)", () => map.zoom(1 / 1.5)),
    button("in", "+", "Zoom in (+)", () => map.zoom(1.5)),
    button("look", "Cell", "Zoom to the chosen cell (Z)", look));
  part.out.setAttribute("aria-label", "Zoom out");
  part.in.setAttribute("aria-label", "Zoom in");
  button("gradients", "Gradients", "Show how the loss changes with each number (G)", () => turn(!chosen.gradients));
  button("full", "Full screen", "", () => (document.fullscreenElement ? document.exitFullscreen() : part.body.requestFullscreen()));
  part.full.hidden = !document.fullscreenEnabled;
  make("controls", "div", { class: "controls" }, element("label", {}, "Array ", part.arrays), zooms, part.gradients, part.full);
  make("picture", "div", { class: "numbers-picture" });
  make("line", "p", { class: "readout", "aria-live": "polite" });
  make("cell", "aside", { class: "numbers-cell", "aria-label": "The chosen number", hidden: true });
  make("both", "div", { class: "numbers-both" }, part.picture, part.cell);
  map = new NumbersMap(part.picture, { title: titleNow, choose: (array, place) => choose(array, place, false) });
  map.box.addEventListener("keydown", key);
  const legend = element("details", {}, element("summary", {}, "Colours and keys"), element("p", { class: "note" }, LEGEND), element("p", { class: "note", id: "numbers-keys" }, KEYS));
  make("body", "div", { class: "numbers", hidden: true }, part.controls, part.both, part.line, map.save, legend);
  section.replaceChildren(part.note, trouble, part.body);
  page.addEventListener("cell", ({ detail }) => {
    wanted = detail;
    takeWanted();
  });
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  if (page.passage && shown?.passage !== page.passage) load(page.passage, page.facts);
}

const load = latest(async (signal, passage, facts) => {
  part.body.ariaBusy = "true"; // who saves a film waits for it
  if (weights?.facts !== facts || page.step !== null) { // those of a step are kept, and asked for again so that the next one's are, too
    const { model } = passage;
    const [content, { texts: vocabulary }] = await Promise.all([bytes("weights", { model }, signal), ask("tokens", { model }, signal)]);
    const file = readSafetensors(content);
    weights = { facts, vocabulary, config: JSON.parse(file.metadata.config), program: new Program(JSON.parse(file.metadata.program), file.arrays) };
  }
  const { config, program, vocabulary } = weights;
  const first = Math.max(0, passage.ids.length - config.block_size); // what the model no longer sees is left out
  const ids = passage.ids.slice(first, first + MOST_TOKENS);
  const texts = passage.texts.slice(first, first + MOST_TOKENS);
  const pass = new Pass(program, ids);
  const isOfTokens = ({ axes, shape, name }) => axes.includes("id") || (axes.at(-1) === "number" && shape.at(-1) === vocabulary.length && !name.startsWith("blocks."));
  for (const array of pass.arrays.filter(isOfTokens)) array.vocabulary = vocabulary;
  const names = pass.arrays.map(({ name, shape }) => `${name} (${shape.join(" × ")})`);
  const isOther = names.join() !== [...part.arrays.options].map(({ text }) => text).join();
  shown = { passage, pass, texts, gradients: null };
  const isCut = ids.length < passage.ids.length;
  part.note.textContent = `All values for ${isCut ? `${first ? "" : "the first "}${counted(ids.length, "token")} of the ${passage.ids.length}${first ? `, from token ${first} on` : ""}` : counted(ids.length, "token")}: ` +
    counted(pass.arrays.length, "array");
  part.body.hidden = false;
  part.gradients.disabled = !pass.loss;
  part.gradients.title = pass.loss ? "Show how the loss changes with each number (G)" : "A text of one token has no next token, and so no loss";
  if (isOther) part.arrays.replaceChildren(...pass.arrays.map(({ name }, i) => new Option(names[i], name)));
  showChosen(isOther);
  takeWanted();
  part.body.ariaBusy = "false";
}, (message) => {
  part.refuse(message);
  if (!message) return;
  shown = null;
  part.body.ariaBusy = "false";
  part.body.hidden = true;
  part.note.textContent = "Only a small GPT is shown number by number.";
});

function byName(name) {
  return shown.pass.arrays.find((array) => array.name === name);
}

/** The array and the place of the chosen cell; null where none is chosen, or this model does not have it. */
function cellNow() {
  const array = byName(chosen.array);
  const indices = chosen.cell.split(".").map(Number);
  const isThere = array && indices.length === array.shape.length && indices.every((index, i) => Number.isInteger(index) && index >= 0 && index < array.shape[i]);
  return isThere ? [array, indices.reduce((place, index, i) => place * array.shape[i] + index, 0)] : null;
}

/** Show the picture with what is chosen in it. */
function showChosen(isOther) {
  if (!shown.pass.loss) chosen.gradients = false;
  if (chosen.gradients) shown.gradients ??= shown.pass.gradients();
  part.gradients.setAttribute("aria-pressed", String(chosen.gradients));
  map.set(shown.pass.arrays, shown.texts, gradientsNow(), isOther);
  map.box.setAttribute("aria-label", titleNow());
  tell();
  if (isOther && cellNow()) look();
}

function gradientsNow() {
  return chosen.gradients ? shown.gradients : null;
}

function titleNow() {
  return `${chosen.gradients ? "Gradients of all arrays in a" : "All arrays in a"} forward pass`;
}

function turn(on) {
  chosen.gradients = on && Boolean(shown.pass.loss);
  remember({ gradients: chosen.gradients ? "1" : null });
  showChosen(false);
}

/** Choose a cell. With `isMoved` it is brought into sight. */
function choose(array, place, isMoved) {
  Object.assign(chosen, { array: array.name, cell: indicesOf(array, place).join(".") });
  remember({ array: chosen.array, cell: chosen.cell });
  tell(isMoved);
}

function chooseNone() {
  Object.assign(chosen, { array: "", cell: "" });
  remember({ array: null, cell: null });
  tell();
}

/** Zoom to the chosen cell. */
function look() {
  const cell = cellNow();
  if (cell) map.approach(...cell);
}

/** Tell about the chosen cell, beside the picture and in a line. */
function tell(isMoved = false) {
  const cell = cellNow();
  part.cell.hidden = !cell;
  part.look.disabled = !cell;
  if (!cell) {
    part.line.textContent = "";
    map.mark(null, []);
    return;
  }
  const [array, place] = cell;
  const gradients = gradientsNow();
  part.arrays.value = array.name;
  const isSame = part.cell.dataset.told === `${array.name} ${place}`;
  const isWhole = isSame && part.cell.querySelector(".terms.whole") !== null;
  const focused = [...part.cell.querySelectorAll("button")].indexOf(document.activeElement);
  part.cell.dataset.told = `${array.name} ${place}`;
  drawCell(part.cell, { isWhole, pass: shown.pass, gradients, array, place, texts: shown.texts, go: (other, at) => choose(other, at, true) });
  if (focused >= 0) ((isSame && part.cell.querySelectorAll("button")[focused]) || part.cell.querySelector("h3")).focus({ preventScroll: true }); // whoever reads on here stays here
  const said = gradients ? `gradient ${brief(gradients.get(array)[place])}` : brief(array.values[place]);
  const line = `${array.name}, ${cellInWords(array, place, shown.texts)}: ${said}`;
  if (part.line.textContent !== line) part.line.textContent = line;
  map.mark(cell, cellsBehind(shown.pass, gradients, array, place), isMoved);
}

/** The cell that gives the chosen one most. */
function largest() {
  const [array, place] = cellNow();
  if (chosen.gradients || !array.source) return null;
  const terms = shown.pass.explain(array, place).terms.filter(({ factors }) => factors.length);
  if (!terms.length) return null;
  const most = terms.reduce((a, b) => (Math.abs(b.value) > Math.abs(a.value) ? b : a));
  return most.factors[0];
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const acts = {
    "+": () => map.zoom(1.5), "=": () => map.zoom(1.5), "-": () => map.zoom(1 / 1.5), 0: () => map.whole(),
    g: () => turn(!chosen.gradients), z: look, Escape: chooseNone,
    PageDown: () => toArray(1), PageUp: () => toArray(-1),
    Enter: () => { const found = cellNow() && largest(); if (found) choose(...found, true); },
  };
  const move = MOVES[event.key];
  const act = move ? () => (event.shiftKey ? map.pan(move[1] * 60, move[0] * 60) : step(...move)) : acts[event.key];
  if (!act || (event.key === "Escape" && !cellNow())) return;
  event.preventDefault();
  act();
}

/** The array before or after the chosen one. */
function toArray(by) {
  const { arrays } = shown.pass;
  const at = arrays.indexOf(byName(chosen.array));
  choose(arrays[at < 0 ? 0 : (at + by + arrays.length) % arrays.length], 0, true);
}

/** The next cell in a direction, in the next head after the last column. */
function step(down, right) {
  const cell = cellNow();
  if (!cell) return choose(shown.pass.arrays[0], 0, true);
  const [array, place] = cell;
  const { heads, rows, columns } = mapsOf(array);
  const [head, row, column] = [Math.floor(place / (rows * columns)), Math.floor(place / columns) % rows, place % columns];
  const across = Math.max(0, Math.min(heads * columns - 1, head * columns + column + right));
  const below = Math.max(0, Math.min(rows - 1, row + down));
  choose(array, (Math.floor(across / columns) * rows + below) * columns + (across % columns), true);
}

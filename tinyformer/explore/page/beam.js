/** Beam search beside greedy search: the tree of what was searched, and the texts that were found. A part of the view "write". */

import { latest, stream } from "./api.js";
import { numberOf } from "./controls.js";
import { page } from "./state.js";
import { counted, element, number, percent, visible } from "./text.js";
import { SearchTree } from "./searchtree.js";

const WIDEST = 16;
const LONGEST = 200;

const sizes = { width: 4, length: 12 };
let section = null;
let parts = null; // the elements that change
let tree = null;
let searched = null; // the passage that was searched from
let taken = null; // the passage that a found text became
let found = null; // the last line of the answer

/**
 * Fill the section once.
 * @param {HTMLElement} given
 */
export function begin(given) {
  section = given;
  const row = element("div", { class: "controls" });
  const button = element("button", { class: "first", id: "beam-search", type: "button" }, "Search");
  const line = element("p", { class: "note", id: "beam-said", role: "status" });
  const picture = element("div", { id: "beam-tree" });
  const table = element("div", { class: "found", id: "beam-found" });
  const legend = element("p", { class: "note", hidden: true }, ...legendParts());
  row.append(button);
  const field = (key, name, more, max) =>
    numberOf(row, { name, label: `${name}${more} (1–${max})`, id: `beam-${key}`, min: 1, max, get: () => sizes[key], set: (value) => { sizes[key] = value; } });
  field("width", "Beam width", "", WIDEST);
  parts = { showLength: field("length", "Length", ", at most", LONGEST), button, line, picture, table, legend };
  section.replaceChildren(
    element("h2", {}, "Greedy and beam search"),
    element("p", { class: "note" }, "A greedy search takes the likeliest token at each step. A beam search keeps several texts at once, so that it can find one that begins less likely and ends likelier."),
    row, line, table, picture, legend,
  );
  button.addEventListener("click", () => (parts.running ? stop() : start()));
  row.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || parts.running || !event.target.matches("input")) return;
    event.target.blur(); // so that it is brought into its range
    event.target.focus();
    start();
  });
  page.addEventListener("model", forget);
}

/** Draw what the page holds now. Nothing is searched for until the button is pressed. */
export function show() {
  const kind = page.facts?.kind;
  section.hidden = kind !== "language" && kind !== "translation";
  parts.button.disabled = !page.passage && !parts.running;
  tree?.draw();
  tell();
}

function legendParts() {
  const sample = (name, text) => [element("span", { class: `sample ${name}` }), ` ${text} `];
  return [
    "A column for each token. The thicker a line and the stronger the colour of a node, the likelier the token after what stands before it: ",
    ...sample("best", "the best text"), ...sample("found", "the others that were found"), ...sample("left", "left behind"),
    ...sample("finished", "a text that ended, with its score"), ...sample("dashed", "greedy"),
  ];
}

function forget() {
  if (!parts) return;
  stop();
  tree?.remove();
  [tree, searched, taken, found] = [null, null, null, null];
  parts.table.replaceChildren();
  parts.legend.hidden = true;
  sizes.length = page.facts.kind === "translation" ? LONGEST : 12; // a translation ends by itself
  parts.showLength();
  tell();
}

const search = latest(async (signal, asked) => {
  if (!asked) return;
  for await (const answer of stream("search", asked, signal)) {
    if (answer.hypotheses) finish(answer);
    else if (answer.step) grow(answer);
  }
  run(false);
}, (message) => {
  if (message) run(false);
  parts.trouble = message;
  tell();
});

function start() {
  const { width: beam, length } = sizes;
  if (!page.passage) return;
  tree?.remove();
  tree = new SearchTree(parts.picture);
  [searched, taken, found] = [beginning(page.passage), null, null];
  parts.table.replaceChildren();
  parts.legend.hidden = false;
  parts.steps = 0;
  run(true);
  const { model, ids, source } = searched;
  search({ passage: { model, ids, source }, beam, length, n_best: beam }).finally(() => tell());
}

function stop() {
  if (!parts.running) return;
  run(false);
  search(null);
}

function run(is) {
  parts.running = is;
  parts.button.textContent = is ? "Stop" : "Search";
  section.setAttribute("aria-busy", String(is));
  tell();
}

function grow(answer) {
  if (!answer.greedy) parts.steps = answer.step;
  tree.grow(answer);
  tell();
}

/** Show what was found: the greedy text first, then the others by their scores. */
function finish(answer) {
  found = answer;
  tree.finish(answer.hypotheses, answer.greedy);
  const heads = ["", "", "Text", "Score", "Log-probability", "Probability"].map((name) => element("th", { scope: "col" }, name));
  const rows = [row("greedy", answer.greedy), ...answer.hypotheses.map((hypothesis, i) => row(`no. ${i + 1}`, hypothesis))];
  parts.table.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
}

function row(name, hypothesis) {
  const { text, score, log_probability: sum, probability, end } = hypothesis;
  const take = element("button", { type: "button", "aria-label": `Take ${name}` }, "Take");
  take.addEventListener("click", () => takeOver(hypothesis));
  const cells = [number(score), number(sum), percent(probability)].map((value) => element("td", { class: "number" }, value));
  const ended = end === null ? " …" : "";
  const made = element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, take), element("td", { class: "text" }, visible(text), element("span", { class: "note" }, ended)), ...cells);
  made.addEventListener("pointerenter", () => tree?.light(hypothesis.nodes));
  made.addEventListener("pointerleave", () => tree?.light(null));
  made.addEventListener("focusin", () => tree?.light(hypothesis.nodes));
  made.addEventListener("focusout", () => tree?.light(null));
  return made;
}

/** Make a text that was found the passage. */
function takeOver({ ids, texts }) {
  taken = { ...searched, ids: [...searched.ids, ...ids], texts: [...searched.texts, ...texts] };
  page.set({ passage: taken }, "passage");
}

/** Say where the search is, and whether it is about the text that the page holds. */
function tell() {
  const lines = [];
  if (parts.trouble) lines.push(parts.trouble);
  else if (parts.running) lines.push(`Searching: ${counted(parts.steps, "token")} so far.`);
  else if (searched && !found) lines.push("The search was stopped.");
  if (searched && page.passage && page.passage === taken) lines.push("The page now shows the selected text. A new search continues from it.");
  else if (searched && page.passage && !same(beginning(page.passage), searched)) lines.push("The text has changed since this search: press Search to search again.");
  const said = lines.join(" ");
  if (parts.line.textContent !== said) parts.line.textContent = said;
  parts.line.classList.toggle("trouble", Boolean(parts.trouble));
}

/** What a search goes on from: the passage; if that has ended already, only what was given of it. */
function beginning(passage) {
  const { ids, texts, given } = passage;
  if (!given || !page.facts.ends.includes(ids.at(-1))) return passage;
  return { ...passage, ids: ids.slice(0, given), texts: texts.slice(0, given) };
}

function same(a, b) {
  const equal = (one, other) => one.length === other.length && one.every((id, i) => id === other[i]);
  return a === b || (a.model === b.model && equal(a.ids, b.ids) && equal(a.source, b.source));
}

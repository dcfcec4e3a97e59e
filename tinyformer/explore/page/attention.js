/** The view "attention": which tokens each token looks at, in each layer and head. */

import { addressed } from "./address.js";
import { ask, latest } from "./api.js";
import { page } from "./state.js";
import { saveSvg } from "./save.js";
import { about, counted, element, placed, small, troubleLine, visible } from "./text.js";
import { headNames } from "./headnames.js";
import { HeadGrid } from "./heads.js";
import { HeatMap, axesOf } from "./heatmap.js";
import { Links } from "./links.js";
import { openPart } from "./opening.js";
import { Weights } from "./weights.js";

const MOST = 5; // the tokens that are looked at most, which are told in numbers
const WITH_NUMBERS = 20; // a map with at most so many columns has room for a number in each cell

const part = {}; // the elements of the view, by name
const LOOKS = "query"; // in every picture of this view a row, or the token below
const IS_LOOKED_AT = "key";

const chosen = { name: "", head: 0, query: 0, key: 0 }; // the layer's name, a head, "mean" or "rollout", and the cell
const picked = { side: "", query: false, key: false }; // whether the user has chosen the query, of a text, and the key
let drawn = null; // the passage that is shown, or asked about
let shown = null; // the answer about it, its passage and its texts
let layer = null; // the one of it that is chosen
let grid = null;
let links = null;
let map = null;
let weights = null;
let told = null; // the row that is drawn
let names = null; // of the heads, once they are known

const remember = addressed("attention", ["layer", "head"], ({ layer: name, head, token }) => {
  const together = ["mean", "rollout"].includes(head);
  if (name && (together || Number(head) >= 1)) Object.assign(chosen, { name, head: together ? head : Math.floor(Number(head)) - 1 });
  picked.query = Number(token) >= 1; // as if the user had chosen it
  if (picked.query) chosen.query = Math.floor(Number(token)) - 1;
  picked.side = ""; // so that it is looked at only if there is such a token
  if (shown?.layers.length && drawn === page.passage) chooseKept();
});

/** Fill the section of this view once. */
export function begin(section) {
  const make = (name, kind, properties = {}, ...children) => (part[name] = element(kind, properties, ...children));
  const choice = (name, head, text, title) =>
    make(name, "button", { type: "button", title, onclick: () => choose(layer.name, head) }, text);
  make("note", "p", { class: "note", id: "attention-note" });
  [part.trouble, part.refuse] = troubleLine();
  make("grid", "div", { class: "heads-box" });
  make("title", "h2", { id: "attention-title" });
  const choices = element("div", { class: "controls", role: "group", "aria-label": "All heads together" },
    choice("mean", "mean", "Mean over heads", "the mean of the weights of all heads of this layer"),
    choice("rollout", "rollout", "Rollout", "how much of each token comes through all layers up to this one"));
  make("choices", "div", { class: "together" }, choices);
  make("links", "div", {});
  make("most", "div", { class: "bars", id: "attention-most" });
  make("map", "div", {});
  make("legend", "div");
  const save = saveSvg(() => `Attention, ${part.title.textContent}`, () => [part.links, part.most]);
  make("one", "div", { class: "one-head" }, part.title, part.choices, part.links, part.most, save, part.map, part.legend);
  make("body", "div", { class: "attention", hidden: true }, part.grid, part.one);
  section.replaceChildren(part.note, part.trouble, part.body);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => grid?.draw());
  page.addEventListener("head", ({ detail }) => {
    Object.assign(chosen, detail); // where the attention is still being computed, it is shown when that has come
    picked.query ||= "query" in detail;
    if (shown?.passage === page.passage) choose(chosen.name, chosen.head);
  });
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  if (!page.passage) return;
  if (drawn !== page.passage) {
    drawn = page.passage;
    load(page.passage, page.asked(), page.isFrame);
  } else {
    map?.draw();
    links?.draw();
    if (layer) retitle();
  }
}

const load = latest(async (signal, passage, asked, isFrame) => {
  const soon = setTimeout(() => (part.note.textContent = `Computing the attention of ${counted(passage.ids.length, "token")}…`), 500);
  const answer = await ask("attention", { passage: asked }, signal).finally(() => clearTimeout(soon));
  const { first } = answer;
  const target = passage.texts.slice(first);
  const moves = isFrame && shown?.layers.length === answer.layers.length && shown.passage.ids.join() === passage.ids.join();
  shown = { ...answer, asked, passage, texts: { text: target, target, source: passage.sourceTexts } };
  for (const one of shown.layers) one.label = labelOf(one);
  names = null;
  part.body.hidden = !shown.layers.length;
  part.note.replaceChildren(...(shown.layers.length ? [axesAbove(first)] : insteadOfAttention()));
  if (!shown.layers.length) return;
  if (moves) takeFrame();
  else build();
  names = await headNames().catch(() => null); // the maps are of use without names
  if (!names || shown.passage !== passage) return;
  grid.name(names);
  retitle();
}, (message) => {
  part.refuse(message);
  if (message) part.body.hidden = true;
  if (message) part.note.textContent = "";
});

/** Draw another text. */
function build() {
  picked.side = ""; // another text
  grid = new HeadGrid(part.grid, shown.layers, (at, head) => {
    const together = typeof chosen.head === "string" ? chosen.head : "mean";
    choose(shown.layers[at].name, head ?? (shown.layers[at].heads > 1 || together === "rollout" ? together : 0));
  }, part.note);
  chooseKept();
}

/** Take the weights of another step into the pictures of the same text. */
function takeFrame() {
  grid.take(shown.layers);
  layer = shown.layers.find(({ name }) => name === chosen.name);
  told = null;
  fetchWeights();
  look(chosen.query, chosen.key);
}

/** Choose the layer and the head that were chosen before, if this model has them. */
function chooseKept() {
  const kept = shown.layers.find(({ name, heads }) => name === chosen.name && (typeof chosen.head === "string" || chosen.head < heads));
  if (kept) choose(kept.name, chosen.head);
  else choose((shown.layers.find(({ kind }) => kind === "cross") ?? shown.layers[0]).name, 0);
}

/** What a model without attention has in the place of it: only recurrent networks are such models. */
function insteadOfAttention() {
  return ["A recurrent network has no attention. ", element("button", { type: "button", class: "link", onclick: () => openPart("states") }, "Its states over time")];
}

function axesAbove(first) {
  const words = axesOf({ rows: LOOKS, columns: IS_LOOKED_AT });
  return first ? `The model sees only the last ${counted(shown.texts.text.length, "token")}: the first ${counted(first, "is", "are")} left out here. ${words}` : words;
}

/** What a layer is called: "layer 2", "encoder layer 2", "decoder layer 1 to source". */
export function labelOf({ name, kind, queries }) {
  const number = name.match(/\d+/);
  const side = { text: "", source: "encoder ", target: "decoder " }[queries];
  const layer = `${side}layer ${Number(number?.[0] ?? 0) + 1}`;
  return kind === "cross" ? `${layer} to source` : layer;
}

/** Show a layer's head, or all its heads together. */
function choose(name, head) {
  layer = shown.layers.find((one) => one.name === name);
  if (head === "rollout" && layer.kind === "cross") head = "mean";
  if (head === "mean" && layer.heads === 1) head = 0;
  Object.assign(chosen, { name, head });
  const keys = shown.texts[layer.keys];
  const queries = shown.texts[layer.queries].map((_, query) => queryText(query));
  if (picked.side !== layer.queries) begins(layer.queries, queries.length);
  picked.key &&= chosen.key < keys.length;
  if (!picked.key) chosen.key = 0; // until the weights are there
  grid.mark(shown.layers.indexOf(layer), head);
  part.mean.hidden = layer.heads === 1;
  part.rollout.hidden = layer.kind === "cross";
  for (const together of ["mean", "rollout"]) part[together].setAttribute("aria-pressed", String(head === together));
  retitle();
  told = null;
  part.one.classList.add("waiting");
  fetchWeights();
  drawLinks(queries, keys);
  drawMap(queries, keys);
  part.legend.replaceChildren(legend(head));
  look(chosen.query, chosen.key);
}

/** The rows of the chosen head's weights are asked for when they are seen. */
function fetchWeights() {
  weights?.close();
  const { name, head } = chosen;
  weights = new Weights({ passage: shown.asked, layer: name, head }, shown.texts[layer.queries].length, shown.texts[layer.keys].length, arrived, (message) => {
    part.legend.textContent = message;
    part.one.classList.remove("waiting");
  });
}

/** The chosen token of a text that was not looked at before: the one that the user chose, or else the last ordinary one. */
function begins(side, length) {
  const special = new Set(side === "source" ? shown.source_special : shown.special);
  const ordinary = [...Array(length).keys()].filter((place) => !special.has(place));
  picked.query &&= chosen.query < length;
  const mask = page.facts.kind === "masked" ? shown.passage.ids.indexOf(page.facts.mask) : -1;
  if (!picked.query) chosen.query = mask >= 0 ? mask : ordinary.at(-1) ?? length - 1;
  picked.side = side;
}

/** The user has chosen a token that looks, or a cell. */
function pick(query, key) {
  if (query !== chosen.query) picked.query = true;
  if (key !== chosen.key) picked.key = true;
  look(query, key);
}

function retitle() {
  const { name, head } = chosen;
  const what = { mean: ", mean over heads", rollout: ": rollout through all layers up to it" }[head] ?? (layer.heads > 1 ? `, head ${head + 1}` : "");
  part.title.textContent = capital(layer.label) + what + (names?.ending(name, head) ?? "");
  if (page.view === "attention") page.trail([capital(layer.label), ...(layer.heads > 1 && typeof head === "number" ? [`Head ${head + 1}`] : [])]);
}

function legend(head) {
  const line = head === "rollout" ? "Attention rollout (Abnar and Zuidema 2020)" : "Attention weights";
  const grey = layer.causal || shown.unseen.length ? " Grey cells are masked: their weight is exactly 0." : "";
  return about(line, `Each row sums to 1. The strength of colours and lines is the square root of the weight.${grey}`);
}

/** The text of a query. That of a cross-attention is the token which the decoder writes there. */
function queryText(query) {
  const texts = shown.texts[layer.queries];
  return layer.kind === "cross" ? texts[query + 1] ?? "…" : texts[query];
}

function drawLinks(queries, keys) {
  links?.remove();
  const side = { text: "Tokens", source: "Tokens of the sentence", target: "Tokens of its translation" };
  links = new Links(part.links, {
    queries,
    keys: layer.kind === "cross" ? keys : null,
    label: side[layer.queries],
    axes: { queries: layer.kind === "cross" ? "output token (query)" : LOOKS, keys: IS_LOOKED_AT },
    name: (query) => namedQuery(query),
    onchoose: (query) => pick(query, chosen.key),
  });
}

function drawMap(queries, keys) {
  map?.remove();
  const wide = keys.length <= WITH_NUMBERS;
  map = new HeatMap(part.map, {
    label: `Attention weights, ${part.title.textContent}`,
    axes: { rows: layer.kind === "cross" ? "output token (query)" : LOOKS, columns: IS_LOOKED_AT },
    legend: [0, 0.01, 0.1, 0.5, 1].map((weight) => [Math.sqrt(weight), String(weight)]),
    complete: () => weights.all(),
    rows: queries.map(visible),
    columns: keys.map(visible),
    cell: wide ? 22 : keys.length <= 64 ? 16 : 12,
    ...(wide ? { width: 46, write: (query, key, value) => (value === null || hidden(query, key) ? "" : small(value)) } : {}),
    scale: Math.sqrt,
    value: (query, key) => weights.row(query)?.[key] ?? null,
    hidden,
    tell,
    onmove: (query, key) => pick(query, key),
    onseen: () => want(),
  });
}

/** The chosen token is the map's row and the token of the links at once. */
function look(query, key) {
  Object.assign(chosen, { query, key });
  remember({ layer: chosen.name, head: typeof chosen.head === "number" ? chosen.head + 1 : chosen.head, token: query + 1 });
  if (map.at.row !== query || map.at.column !== key || !map.line.textContent) {
    reveal(query, key);
    map.move(query, key); // which calls pick, and so look again, with the same cell
    return;
  }
  want();
  tellAll();
}

/** Scroll the map to a cell. */
function reveal(query, key) {
  const { box, top, left, how } = map;
  const within = (at, size, now, room) => (room > size ? Math.max(Math.min(now, at * size), (at + 1) * size - room) : now);
  box.scrollTop = within(query, how.cell, box.scrollTop, box.clientHeight - top);
  if (key !== map.at.column) box.scrollLeft = within(key, how.width, box.scrollLeft, box.clientWidth - left);
}

/** Until the user has chosen a cell, the chosen one is that to which its token looks most, in the middle of what is seen. */
function lookAtMost(row) {
  const best = row.reduce((most, weight, key) => (weight > row[most] && !hidden(chosen.query, key) ? key : most), 0);
  if (best === chosen.key && map.line.textContent) return;
  chosen.key = best;
  map.box.scrollLeft = (best + 0.5) * map.how.width - (map.box.clientWidth - map.left) / 2;
  map.move(chosen.query, best);
}

/** Fetch the chosen query's weights first, and then those that are seen. */
function want() {
  if (!map) return; // it is being made
  const { row, rows } = map.seen();
  weights.want([chosen.query, ...Array.from({ length: rows }, (_, i) => row + i)]);
}

function arrived() {
  map.line.textContent = tell(chosen.query, chosen.key, weights.row(chosen.query)?.[chosen.key] ?? null);
  map.draw();
  tellAll();
}

/** The lines, and the tokens that are looked at most, of the chosen query. */
function tellAll() {
  const { query } = chosen;
  const row = weights.row(query);
  if (row && told === row) return;
  told = row;
  if (row) part.one.classList.remove("waiting");
  if (row && !picked.key) lookAtMost(row);
  links.show(query, row, (key, value) => tell(query, key, value), (key) => hidden(query, key));
  const keys = row ? [...row.keys()].filter((key) => !hidden(query, key)).sort((a, b) => row[b] - row[a]).slice(0, MOST) : [];
  part.most.replaceChildren(
    element("p", { class: "most" }, `${namedQuery(query)} ${looks()}:`),
    ...keys.flatMap((key) => bar(query, key, row[key])),
  );
}

/** A token that is looked at, which leads to its cell of the map; and its number. */
function bar(query, key, value) {
  const name = element("button", { class: "token", type: "button", title: "show it in the map", onclick: () => pick(query, key) }, named(layer.keys, key));
  const filled = element("span", { class: "bar", "aria-hidden": "true" });
  filled.style.width = `${100 * value}%`;
  return [name, filled, element("span", { class: "number" }, small(value))];
}

/** Whether a query may not look at a key: a later token, or padding. In a rollout each token keeps a part of itself. */
function hidden(query, key) {
  if (chosen.head === "rollout" && query === key) return false;
  return (layer.causal && key > query) || (layer.keys !== "target" && shown.unseen.includes(key));
}

/** The line about a cell of the map. */
function tell(query, key, value) {
  const [one, other] = [namedQuery(query), named(layer.keys, key)];
  if (hidden(query, key)) return `${one} cannot see ${other}: it ${layer.causal && key > query ? "comes later" : "is padding"}`;
  return `${one} ${looks()} ${other}: ${value === null ? "…" : small(value)}`;
}

function looks() {
  return chosen.head === "rollout" ? "receives from" : "attends to";
}

function namedQuery(query) {
  return layer.kind === "cross" ? placed(queryText(query), query + 1) : named(layer.queries, query);
}

/** A token with its place, from 1 on. */
function named(side, at) {
  return placed(shown.texts[side][at], at + (side === "text" ? shown.first : 0));
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

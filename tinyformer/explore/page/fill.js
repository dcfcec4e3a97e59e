/** Filling in: a BERT's likeliest tokens for each mask. */

import { samplingControls } from "./controls.js";
import { Distribution } from "./distribution.js";
import { page } from "./state.js";
import { element, visible } from "./text.js";
import { saveSvg } from "./save.js";
import { TokenButtons, legend } from "./tokens.js";

let prompt = null; // the passage as it was given
let tokens = []; // those that are looked at: {id, text, probability}
let own = null; // the passage that was set here
let drawn = null; // the passage that is drawn
let place = null; // the token that is looked at
let text, panel, hide, undo;

/** Fill this part of the view once. */
export function begin(part) {
  const row = element("div", { class: "controls" });
  hide = element("button", { type: "button" }, "Mask this token");
  undo = element("button", { type: "button" }, "Clear");
  hide.addEventListener("click", () => mask(place));
  undo.addEventListener("click", clear);
  row.append(hide, undo);
  samplingControls(row, false);
  const left = element("div", {}, legend("Choose a mask for the likeliest tokens, and one of those to fill it in. The key M masks a token."));
  const right = element("div", { class: "distribution" });
  part.append(row, element("div", { class: "side" }, left, right));
  text = new TokenButtons(left, "The text. M masks a token", look);
  left.append(saveSvg(() => "The text, coloured by probability", () => [left]));
  text.box.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() === "m" && !event.ctrlKey && !event.metaKey && !event.altKey) mask(text.at);
  });
  panel = new Distribution(right, choose);
  page.addEventListener("passage", adopt);
  page.addEventListener("sampling", () => page.view === "write" && page.facts?.kind === "masked" && page.passage && showPlace());
}

/** Draw what the page holds now. */
export function show() {
  if (!own) return;
  if (drawn !== own) draw();
  showPlace();
}

/** Take over a passage that was set elsewhere, as it was filled in before. */
function adopt() {
  if (!page.passage || page.passage === own) return;
  const before = prompt;
  own = prompt = null;
  if (page.facts.kind !== "masked") return;
  prompt = page.passage;
  const kept = page.writing.filled;
  tokens = kept && samePrompt(kept) ? kept.tokens.map((token) => ({ ...token })) : given();
  if (!before || !samePrompt({ ...before, tokens })) place = nextMask(0); // otherwise only the weights are new
  change();
}

function given() {
  return prompt.ids.map((id, i) => ({ id, text: prompt.texts[i], probability: null }));
}

function samePrompt({ model, ids, tokens: kept }) {
  return model === prompt.model && Array.isArray(kept) && ids.length === prompt.ids.length && ids.every((id, i) => id === prompt.ids[i]);
}

/** The tokens have changed: all views look at them. */
function change() {
  const same = tokens.every(({ id }, i) => id === prompt.ids[i]);
  own = same ? prompt : { ...prompt, ids: tokens.map(({ id }) => id), texts: tokens.map((token) => token.text) };
  const filled = same ? null : { model: prompt.model, ids: prompt.ids, tokens };
  page.writing = { ...page.writing, filled };
  if (own === page.passage) {
    page.keep();
    if (drawn) show();
  } else page.set({ passage: own }, "passage");
}

/** The first [MASK] at or after a place; or the first of all; or null. */
function nextMask(from) {
  const masks = tokens.flatMap(({ id }, i) => (id === page.facts.mask ? [i] : []));
  return masks.find((i) => i >= from) ?? masks[0] ?? null;
}

function isAround(at) {
  return at === 0 || at === tokens.length - 1; // [CLS] and [SEP]
}

function draw() {
  drawn = own;
  text.set(tokens.map((token, i) => ({ ...token, kind: token.id === page.facts.mask ? "mask" : isAround(i) ? "start" : "" })));
  text.reach(place ?? 1);
  text.light(place);
}

function showPlace() {
  const masked = place !== null && tokens[place].id === page.facts.mask;
  hide.setAttribute("aria-disabled", String(place === null || masked || isAround(place)));
  undo.setAttribute("aria-disabled", String(own === prompt));
  if (place === null) panel.say("Choose a token. There is no mask to fill in");
  else if (masked) panel.ask("fill", { passage: page.asked(), place, sampling: page.sampling }, `Position ${place + 1}: ${page.facts.mask_name}`);
  else panel.say(`Position ${place + 1}: “${visible(tokens[place].text)}” is given${isAround(place) ? "" : ". Mask it to see what could stand there"}`);
}

function look(at) {
  place = at;
  text.light(at);
  showPlace();
}

function mask(at) {
  if (at === null || isAround(at) || tokens[at].id === page.facts.mask) return;
  tokens[at] = { id: page.facts.mask, text: page.facts.mask_name, probability: null };
  place = at;
  change();
}

function choose({ id, text: name, probability }) {
  tokens[place] = { id, text: name, probability };
  const filled = place;
  place = nextMask(place) ?? filled;
  change();
  text.focus();
}

function clear() {
  tokens = given();
  place = nextMask(0);
  change();
}

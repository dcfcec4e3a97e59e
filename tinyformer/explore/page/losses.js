/** The loss of each token of a text under one model or two, as colours. A part of the view "compare". */

import { Refusal, ask, latest, stream } from "./api.js";
import { ColouredText, tint } from "./colouredtext.js";
import { keep, kept } from "./comparekept.js";
import { page } from "./state.js";
import { saveSvg } from "./save.js";
import { able, counted, element, number, onPress, percent, troubleLine, visible } from "./text.js";

const SOON = 2000; // characters of a text whose losses are computed without being asked for
const OWN = "Each loss is −log p of the token, in nats. Bits per character compare models with different tokens.";
const MEANINGS = {
  language: `The text is read after the model's start token. ${OWN}`,
  translation: `The losses are those of the translation and its end, given the sentence. ${OWN}`,
  masked: `This is the pseudo-log-likelihood: each token is hidden in turn, and predicted from all others. So it cannot be compared with the losses of a language model. It takes a pass for each token. ${OWN}`,
};

const part = {}; // the elements, by name
const sides = { a: null, b: null }; // {model, texts, losses, last}
let other = ""; // the name of model B
let colours = null; // the ColouredText
let soon = null;

/** Fill this part of the view once. */
export function begin(box) {
  const make = (name, kind, properties = {}, ...children) => (part[name] = element(kind, properties, ...children));
  make("text", "textarea", { rows: 4, value: kept.text, placeholder: "Empty: the text above", spellcheck: false });
  make("source", "textarea", { rows: 2, value: kept.source, placeholder: "Empty: the sentence above", spellcheck: false });
  make("sourceField", "label", { hidden: true }, "Sentence that it translates ", part.source);
  make("compute", "button", { type: "button", class: "first" }, "Compute the losses");
  make("stop", "button", { type: "button", "aria-disabled": "true" }, "Stop");
  make("progress", "p", { class: "note", role: "status" });
  [part.trouble, part.refuse] = troubleLine();
  make("table", "table", { class: "means" });
  make("shown", "fieldset", { class: "shown" });
  make("legend", "p", { class: "legend" });
  make("losses", "div");
  make("meaning", "p", { class: "note" });
  const save = saveSvg(() => `Losses of each token, A ${page.shown}${sides.b ? ` and B ${sides.b.model}` : ""}`, () => [part.table, part.legend, part.losses]);
  make("picture", "div", { hidden: true }, part.table, part.shown, part.legend, part.losses, save);
  box.append(
    element("h2", {}, "The loss of each token of a text"), part.meaning,
    element("div", { class: "pasted" }, part.sourceField, element("label", {}, "Text ", part.text)),
    element("div", { class: "controls" }, part.compute, part.stop), part.progress, part.trouble, part.picture);
  for (const name of ["text", "source"]) part[name].addEventListener("input", typed);
  onPress(part.compute, () => lose("compute"));
  onPress(part.stop, () => lose("stop"));
  part.shown.addEventListener("change", (event) => {
    keep({ shown: event.target.value });
    if (sides.a?.last) paint();
  });
}

function typed() {
  keep({ text: part.text.value, source: part.source.value });
  clearTimeout(soon);
  soon = setTimeout(loseIfShort, 300);
}

/** Show the losses under model A and this one. */
export function show(name) {
  other = name;
  part.sourceField.hidden = page.facts.kind !== "translation";
  loseIfShort();
}

/** Compute the losses of a short text at once. Those of a long one wait until they are asked for. */
function loseIfShort() {
  lose(entered("text", "text").length <= SOON ? "compute" : "wait");
}

/** What is typed here, or else the prompt's. */
function entered(field, prompts) {
  return part[field].value || page[prompts];
}

const lose = latest(async (signal, how) => {
  working(how === "compute");
  if (how === "stop") return progress("Stopped. ");
  for (const name of ["a", "b"]) sides[name] = null;
  clear();
  const text = entered("text", "text");
  part.meaning.textContent = MEANINGS[page.facts.kind] ?? "";
  if (how === "wait") part.progress.textContent = `This text has ${counted(text.length, "character")}: its losses are computed when you ask for them.`;
  if (how === "wait" || !text) return working(false);
  const asked = { text, source: page.facts.kind === "translation" ? entered("source", "sourceText") : "" };
  const names = { a: page.model, b: other };
  if (names.b && (await ask("facts", { model: names.b }, signal)).kind !== page.facts.kind) names.b = ""; // its losses are of other things
  for (const name of ["a", "b"]) sides[name] = names[name] ? { model: names[name], texts: [], losses: [], last: null, refusal: "" } : null;
  shownSides();
  await Promise.all(Object.values(sides).filter(Boolean).map((side) => loseOne(side, asked, signal)));
  if (signal.aborted) return;
  part.refuse(Object.values(sides).filter((side) => side?.refusal).map(({ model, refusal }) => `${model}: ${refusal}`).join(" · "));
  working(false);
}, (message) => {
  if (message) working(false);
  part.refuse(message);
});

function working(is) {
  able(part.compute, !is);
  able(part.stop, is);
  part.progress.setAttribute("aria-busy", String(is));
}

/** Take in the losses under one model as they come. */
async function loseOne(side, asked, signal) {
  try {
    for await (const part of stream("losses", { model: side.model, ...asked }, signal)) {
      if (signal.aborted) return;
      side.texts.push(...part.texts);
      side.losses.push(...part.losses);
      side.last = part;
      paint(false);
    }
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    side.refusal = error.message;
  }
}

/** Whether A and B have cut the text in the same way, as far as both are known. */
function alike() {
  const { a, b } = sides;
  if (!a || !b) return false;
  const both = Math.min(a.texts.length, b.texts.length);
  if (a.last && b.last && a.last.tokens !== b.last.tokens) return false;
  for (let i = checked; i < both; i++) {
    if (a.texts[i] !== b.texts[i]) return false;
  }
  checked = both;
  return true;
}

let checked = 0; // so many tokens are the same for A and B
let painted = 0; // so many tokens have their final colour
let drawnOf = null; // the side whose texts the coloured text shows

function clear() {
  checked = painted = 0;
  drawnOf = null;
  colours?.remove();
  colours = null;
  part.picture.hidden = true;
  part.table.replaceChildren();
  part.legend.replaceChildren();
  part.progress.textContent = "";
}

/** The choice of what the colours show. */
function shownSides() {
  const choices = { a: "Loss under A", b: "Loss under B", difference: "Difference" };
  const chosen = sides.b ? kept.shown : "a";
  part.shown.hidden = !sides.b;
  part.shown.replaceChildren(element("legend", {}, "Colours"), ...Object.entries(choices).map(([value, label]) =>
    element("label", {}, element("input", { type: "radio", name: "shown", value, checked: value === chosen }), ` ${label}`)));
}

/** Show what has come so far. */
function paint(all = true) {
  const same = alike();
  const difference = part.shown.querySelector("[value='difference']");
  difference.disabled = !same;
  if (difference.checked && !same) part.shown.querySelector("[value='a']").checked = true;
  const mode = part.shown.querySelector(":checked").value;
  let side = sides[mode === "b" ? "b" : "a"];
  if (same && drawnOf && drawnOf.texts.length >= side.texts.length) side = drawnOf; // the same tokens: they need not be drawn anew
  if (side !== drawnOf) {
    colours?.remove();
    drawnOf = side;
    colours = new ColouredText(part.losses, { label: "The text, coloured by loss", gap: between(), colour, tell });
  }
  colours.append(side.texts.slice(colours.texts.length));
  colours.paint(all ? 0 : painted);
  part.picture.hidden = false;
  painted = Math.min(...Object.values(sides).filter(Boolean).map(({ losses }) => losses.length));
  means(same);
  legend(mode);
  progress("");
}

/** What stands between tokens: WordPiece's have no spaces of their own. */
function between() {
  return page.facts.kind === "masked" ? " " : "";
}

/** The mode of the colours now. */
function mode() {
  return part.shown.querySelector(":checked").value;
}

function colour(i) {
  if (mode() !== "difference") {
    const side = sides[mode()];
    const loss = side.losses[i];
    return loss === undefined ? "" : tint(mode() === "b" ? "other" : "high", loss / side.last.uniform);
  }
  const by = gap(i);
  return by === null ? "" : tint(by > 0 ? "high" : "other", Math.abs(by) / FULL);
}

const FULL = 2; // nats of difference that have the full colour

/** By how much more A lost at a token than B. */
function gap(i) {
  const [a, b] = [sides.a?.losses[i], sides.b?.losses[i]];
  return a === undefined || b === undefined ? null : a - b;
}

function tell(i) {
  const told = (name) => {
    const loss = sides[name]?.losses[i];
    return loss === undefined ? [] : [`${name.toUpperCase()} ${number(loss)} nats (${percent(Math.exp(-loss))})`];
  };
  const same = alike();
  const names = same ? ["a", "b"] : [drawnOf === sides.b ? "b" : "a"];
  const by = same ? gap(i) : null;
  return [`${i + 1}: “${visible(drawnOf.texts[i])}”`, ...names.flatMap(told), ...(by === null ? [] : [`A − B = ${number(by).replace("-", "−")}`])].join(", ");
}

/** The table of means. */
function means(same) {
  const row = (name, side, last) => element("tr", {}, element("th", { scope: "row", title: side.model }, name),
    ...[last.tokens.toLocaleString("en"), number(last.mean), number(last.perplexity), number(last.bits_per_character)].map((text) => element("td", {}, text)));
  const known = Object.entries(sides).filter(([, side]) => side?.last);
  const rows = known.map(([name, side]) => row(name.toUpperCase(), side, side.last));
  const isPseudo = page.facts.kind === "masked"; // each token was hidden in turn
  const titles = ["", "tokens", "mean loss (nats)", isPseudo ? "pseudo-perplexity" : "perplexity", "bits per character"];
  const note = known.length === 2 && !same ? [element("caption", {}, "The models cut the text into different tokens. Compare the bits per character.")] : [];
  part.table.replaceChildren(...note, element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))), element("tbody", {}, ...rows));
}

/** What the colours mean. */
function legend(mode) {
  const swatch = (colour, x, text) => {
    const made = element("span", { class: "swatch" }, text);
    made.style.background = tint(colour, x);
    return made;
  };
  if (mode === "difference") {
    const steps = [1, 0.5, 0].map((x) => swatch("high", x, x ? `+${FULL * x}` : "0")).concat([0.5, 1].map((x) => swatch("other", x, `−${FULL * x}`)));
    part.legend.replaceChildren("A is worse ", ...steps, " B is worse (nats)");
    return;
  }
  const { uniform } = sides[mode].last ?? sides.a.last ?? sides.b.last;
  const steps = [0, 0.25, 0.5, 0.75, 1].map((x) => swatch(mode === "b" ? "other" : "high", x, (x * uniform).toFixed(2)));
  part.legend.replaceChildren("Expected ", ...steps, " as surprising as to a model that knows nothing, or more (nats)");
}

function progress(before) {
  const said = Object.entries(sides).filter(([, side]) => side?.last).map(([name, { last }]) => `${name.toUpperCase()} ${last.done.toLocaleString("en")} of ${counted(last.tokens, "token")}`);
  part.progress.textContent = before + said.join(", ");
}

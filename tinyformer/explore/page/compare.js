/** The view "compare": two models on the same prompt, and the loss of each token of a text. */

import { addressed } from "./address.js";
import { Refusal, ask, latest, stream } from "./api.js";
import { different, folderOf } from "./checkpoint.js";
import { page } from "./state.js";
import { counted, element, number, percent, visible } from "./text.js";
import { ColouredText } from "./colouredtext.js";
import { numberOf } from "./controls.js";
import { saveSvg } from "./save.js";

const KEY = "explorer.compare"; // where this tab of the browser keeps what was chosen here
const SOON = 2000; // characters of a text whose losses are computed without being asked for
const kept = { others: {}, length: 200, text: "", source: "", shown: "a" };

let section = null;
let other = ""; // the name of model B
let parts = null; // the elements that change
let drawn = ""; // what the page showed when this view last asked
let drawnWeights = ""; // and with which weights of A and B
const sides = { a: null, b: null }; // of the losses: {model, texts, losses, last}
let colours = null; // the ColouredText of the losses

let linked = ""; // model B of an address
const remember = addressed("compare", ["other"], ({ other: name }) => (linked = name ?? ""));

/** Fill the section of this view once. */
export function begin(given) {
  section = given;
  restore();
  parts = {
    first: element("select", {}),
    second: element("select", {}),
    note: element("p", { class: "note" }),
    next: element("div", {}),
    nextTrouble: trouble(),
    go: element("button", { type: "button", class: "first" }, "Continue with both"),
    stop: element("button", { type: "button", "aria-disabled": "true" }, "Stop"),
    controls: element("div", { class: "controls" }),
    sampling: element("p", { class: "note" }),
    written: element("div", { class: "both" }),
    writeTrouble: trouble(),
    text: element("textarea", { rows: 4, value: kept.text, placeholder: "Empty: the text above", spellcheck: false }),
    source: element("textarea", { rows: 2, value: kept.source, placeholder: "Empty: the sentence above", spellcheck: false }),
    compute: element("button", { type: "button", class: "first" }, "Compute the losses"),
    stopLosses: element("button", { type: "button", "aria-disabled": "true" }, "Stop"),
    progress: element("p", { class: "note", role: "status" }),
    lossTrouble: trouble(),
    table: element("table", { class: "means" }),
    shown: element("fieldset", { class: "shown" }),
    legend: element("p", { class: "legend" }),
    losses: element("div", {}),
    meaning: element("p", { class: "note" }),
  };
  parts.sourceField = element("label", { hidden: true }, "Sentence that it translates ", parts.source);
  parts.controls.append(parts.go, parts.stop);
  numberOf(parts.controls, { name: "Length", min: 1, max: 5000, get: () => kept.length, set: (length) => keep({ length }) });
  parts.goOn = element("div", {},
    element("h2", {}, "Go on from the same prompt"),
    parts.controls, parts.sampling, parts.writeTrouble, parts.written);
  parts.nextName = element("h2", {});
  parts.nextPicture = element("div", { hidden: true }, parts.nextName, parts.next, saveSvg(() => `${parts.nextName.textContent}, A ${page.model} and B ${other}`, () => [parts.next]));
  parts.two = element("div", {}, parts.nextTrouble, parts.nextPicture, parts.goOn);
  parts.lossPart = lossPart();
  section.replaceChildren(
    element("div", { class: "controls" }, element("label", {}, "Model A ", parts.first), element("label", {}, "Model B ", parts.second)),
    parts.note, parts.two, parts.lossPart);
  listen();
}

/** The part about losses. */
function lossPart() {
  const save = saveSvg(() => `Losses of each token, A ${page.model}${sides.b ? ` and B ${sides.b.model}` : ""}`, () => [parts.table, parts.legend, parts.losses]);
  parts.lossPicture = element("div", { hidden: true }, parts.table, parts.shown, parts.legend, parts.losses, save);
  return element("div", {},
    element("h2", {}, "The loss of each token of a text"), parts.meaning,
    element("div", { class: "pasted" }, parts.sourceField, element("label", {}, "Text ", parts.text)),
    element("div", { class: "controls" }, parts.compute, parts.stopLosses), parts.progress, parts.lossTrouble,
    parts.lossPicture);
}

function trouble() {
  return element("p", { class: "trouble", role: "alert", hidden: true });
}

function listen() {
  parts.first.addEventListener("change", () => chooseFirst(parts.first.value));
  parts.second.addEventListener("change", () => {
    keep({ others: { ...kept.others, [page.facts.kind]: parts.second.value } });
    show();
  });
  const on = (button, act) => button.addEventListener("click", () => button.getAttribute("aria-disabled") === "true" || act());
  on(parts.go, () => write(true));
  on(parts.stop, () => write(false));
  for (const name of ["text", "source"]) parts[name].addEventListener("input", typed);
  on(parts.compute, () => lose("compute"));
  on(parts.stopLosses, () => lose("stop"));
  parts.shown.addEventListener("change", (event) => {
    keep({ shown: event.target.value });
    if (sides.a?.last) paint();
  });
  page.addEventListener("sampling", tellSampling);
}

/** Model A is the one that is chosen at the head of the page. */
function chooseFirst(name) {
  const head = document.getElementById("model");
  head.value = name;
  head.dispatchEvent(new Event("change"));
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  if (!page.passage) return;
  const others = different(page.model);
  other = otherOf(others);
  remember({ other });
  fill(parts.first, page.models, page.model);
  fill(parts.second, others, other);
  parts.second.parentElement.hidden = parts.two.hidden = !others.length;
  parts.note.textContent = others.length ? `A is the model that is chosen above. Both models read the text above, without what Write has added to it. The longer a bar, the likelier the token. ${sameAs()}` : alone();
  const predicts = page.facts.kind !== "encoder";
  const tells = page.facts.labels !== null; // classes
  parts.lossPart.hidden = !predicts;
  if (!predicts && !(tells && others.length)) {
    parts.two.hidden = true;
    parts.note.textContent = `This model predicts no tokens, so there are no predictions and no losses to compare.${tells ? " What it says of the text is in Write." : ""}`;
    return;
  }
  parts.sourceField.hidden = page.facts.kind !== "translation";
  const fills = page.facts.kind === "masked";
  parts.nextName.textContent = !predicts ? "The classes of the text" : fills ? "The first mask" : "The next token";
  parts.goOn.hidden = fills || !predicts;
  if (!predicts) parts.note.textContent = "A is the model that is chosen above. The longer a bar, the likelier the class.";
  tellSampling();
  const now = JSON.stringify([page.model, other, page.text, page.sourceText]);
  const weights = JSON.stringify([page.model, other].map((name) => page.weights[name]?.stamp));
  if (now === drawn && weights === drawnWeights) return;
  if (now !== drawn) {
    write(false);
    parts.written.replaceChildren(); // what was written stays where only the weights are new
  }
  [drawn, drawnWeights] = [now, weights];
  if (others.length) compareNext();
  if (predicts) loseIfShort();
}

/** Model B: the one that was chosen for models of this kind, or else the other checkpoint of A's folder, or else any. */
function otherOf(names) {
  if (names.includes(linked)) keep({ others: { ...kept.others, [page.facts.kind]: linked } });
  linked = "";
  const chosen = kept.others?.[page.facts.kind];
  return names.includes(chosen) ? chosen : names.find((name) => folderOf(name) === folderOf(page.model)) ?? names[0] ?? "";
}

/** Which models are left out, as there is nothing to compare. */
function sameAs() {
  const same = page.weights[page.model]?.same ?? [];
  return same.length ? `${same.join(" and ")} ${same.length === 1 ? "is" : "are"} left out: the weights are the same as those of ${page.model}.` : "";
}

/** What to do where there is nothing to compare with. */
function alone() {
  const why = page.models.length > 1 ? `${page.models.join(" and ")} have the same weights` : "There is one model only";
  const folder = folderOf(page.model) || page.folders[0];
  const how = `tinyformer explore ${folder} ${page.beside[0] ?? "ANOTHER"}`;
  return `${why}, so there is nothing to compare. To compare two runs, start the explorer with both folders: ${how}. The model's losses are below.`;
}

/** Whether a button does something. One that does nothing keeps the focus, so that the keyboard does not lose its place. */
function able(button, is) {
  button.setAttribute("aria-disabled", String(!is));
}

function fill(select, names, chosen) {
  if (names.join("\n") !== [...select.options].map(({ value }) => value).join("\n")) select.replaceChildren(...names.map((name) => new Option(name, name)));
  select.value = chosen;
}

function refused(line) {
  return (message) => {
    line.textContent = message;
    line.hidden = !message;
  };
}

/** The prompt as the ids of a model. Throws Refusal where it cannot read it. */
async function passageOf(model, signal) {
  const { kind, mask } = await ask("facts", { model }, signal);
  if (kind !== page.facts.kind) throw new Refusal(`${page.model} and ${model} cannot be compared: they are models of different kinds.`);
  const { ids } = await ask("encode", { model, text: page.text }, signal);
  if (kind === "masked" && !ids.includes(mask)) throw new Refusal("There is no mask in the text, so there are no predictions to compare.");
  const source = kind === "translation" ? await ask("encode", { model, text: page.sourceText, source: true }, signal) : { ids: [] };
  return { model, ids, source: source.ids };
}

// ------------------------------------------------------------------------------------------------------- the next token

const compareNext = latest(async (signal) => {
  const a = await passageOf(page.model, signal);
  const b = await passageOf(other, signal);
  if (page.facts.kind === "encoder") parts.next.replaceChildren(await classesOfBoth(a, b, signal));
  else {
    const found = await ask("divergence", { a, b }, signal);
    parts.next.replaceChildren(...(found.alike ? together(found) : apart(found)));
  }
  parts.nextPicture.hidden = false;
}, (message) => {
  if (message) parts.nextPicture.hidden = true;
  refused(parts.nextTrouble)(message);
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
    element("p", { class: "note" }, "The models' own probabilities, without temperature, top-k and top-p. A divergence of 0: both predict the same."),
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

// -------------------------------------------------------------------------------------------------------------- writing

function tellSampling() {
  const { temperature, top_k, top_p, seed } = page.sampling;
  parts.sampling.textContent = `Both with temperature ${temperature}, top-k ${top_k || "off"}, top-p ${top_p === 1 ? "off" : top_p} and seed ${seed}: they are set in Write. The stronger the colour, the likelier the token was.`;
}

const write = latest(async (signal, start) => {
  able(parts.go, !start);
  able(parts.stop, start);
  if (!start) return;
  const { length } = kept;
  const names = [page.model, other];
  const columns = ["A", "B"].map((name, i) => ({ place: element("div", {}), heading: element("h3", {}, `${name}: ${names[i]}`), trouble: trouble() }));
  const save = saveSvg(() => `What ${names.join(" and ")} write`, () => [parts.written]);
  save.hidden = true;
  parts.written.replaceChildren(...columns.map(({ heading, trouble, place }) => element("div", {}, heading, trouble, place)), save);
  const { sampling } = page;
  await Promise.all(columns.map((column, i) => writeOne(column, names[i], length, sampling, signal)));
  if (signal.aborted) return;
  save.hidden = !parts.written.querySelector(".tokens:not([hidden])");
  able(parts.go, true);
  able(parts.stop, false);
}, (message) => {
  if (message) {
    able(parts.go, true);
    able(parts.stop, false);
  }
  refused(parts.writeTrouble)(message);
});

/** Let one model write, and show each token as it comes. */
async function writeOne({ place, heading, trouble }, model, length, sampling, signal) {
  const found = [];
  place.hidden = heading.hidden = true; // until there is a token
  const text = new ColouredText(place, {
    label: `What ${model} writes`,
    colour: (i) => strength("high", found[i].probability),
    tell: (i) => `${i + 1}: “${visible(found[i].text)}”, ${percent(found[i].probability)}`,
  });
  try {
    const passage = await passageOf(model, signal);
    for await (const token of stream("write", { passage, length, sampling }, signal)) {
      found.push(token);
      text.append([token.text]);
      place.hidden = heading.hidden = false;
    }
    const logarithm = found.reduce((sum, { probability }) => sum - Math.log(probability), 0) / found.length;
    if (found.length) place.append(element("p", { class: "note" }, `${counted(found.length, "token")}, mean −log p ${number(logarithm)} nats`));
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    heading.hidden = false; // it says whose trouble it is
    refused(trouble)(error.message);
  }
}

// --------------------------------------------------------------------------------------------------------------- losses

const OWN = "Each loss is −log p of the token, in nats. Bits per character compare models with different tokens.";
const MEANINGS = {
  language: `The text is read after the model's start token. ${OWN}`,
  translation: `The losses are those of the translation and its end, given the sentence. ${OWN}`,
  masked: `This is the pseudo-log-likelihood: each token is hidden in turn, and predicted from all others. So it cannot be compared with the losses of a language model. It takes a pass for each token. ${OWN}`,
};
let soon = null;

function typed() {
  keep({ text: parts.text.value, source: parts.source.value });
  clearTimeout(soon);
  soon = setTimeout(loseIfShort, 300);
}

/** Compute the losses of a short text at once. Those of a long one wait until they are asked for. */
function loseIfShort() {
  lose(entered("text", "text").length <= SOON ? "compute" : "wait");
}

/** What is typed here, or else the prompt's. */
function entered(field, prompts) {
  return parts[field].value || page[prompts];
}

const lose = latest(async (signal, how) => {
  working(how === "compute");
  if (how === "stop") return progress("Stopped. ");
  for (const name of ["a", "b"]) sides[name] = null;
  clear();
  const text = entered("text", "text");
  parts.meaning.textContent = MEANINGS[page.facts.kind] ?? "";
  if (how === "wait") parts.progress.textContent = `This text has ${counted(text.length, "character")}: its losses are computed when you ask for them.`;
  if (how === "wait" || !text) return working(false);
  const asked = { text, source: page.facts.kind === "translation" ? entered("source", "sourceText") : "" };
  const names = { a: page.model, b: other };
  if (names.b && (await ask("facts", { model: names.b }, signal)).kind !== page.facts.kind) names.b = ""; // its losses are of other things
  for (const name of ["a", "b"]) sides[name] = names[name] ? { model: names[name], texts: [], losses: [], last: null, refusal: "" } : null;
  shownSides();
  await Promise.all(Object.values(sides).filter(Boolean).map((side) => loseOne(side, asked, signal)));
  if (signal.aborted) return;
  refused(parts.lossTrouble)(Object.values(sides).filter((side) => side?.refusal).map(({ model, refusal }) => `${model}: ${refusal}`).join(" · "));
  working(false);
}, (message) => {
  if (message) working(false);
  refused(parts.lossTrouble)(message);
});

function working(is) {
  able(parts.compute, !is);
  able(parts.stopLosses, is);
  parts.progress.setAttribute("aria-busy", String(is));
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
  parts.lossPicture.hidden = true;
  parts.table.replaceChildren();
  parts.legend.replaceChildren();
  parts.progress.textContent = "";
}

/** The choice of what the colours show. */
function shownSides() {
  const choices = { a: "Loss under A", b: "Loss under B", difference: "Difference" };
  const chosen = sides.b ? kept.shown : "a";
  parts.shown.hidden = !sides.b;
  parts.shown.replaceChildren(element("legend", {}, "Colours"), ...Object.entries(choices).map(([value, label]) =>
    element("label", {}, element("input", { type: "radio", name: "shown", value, checked: value === chosen }), ` ${label}`)));
}

/** Show what has come so far. */
function paint(all = true) {
  const same = alike();
  const difference = parts.shown.querySelector("[value='difference']");
  difference.disabled = !same;
  if (difference.checked && !same) parts.shown.querySelector("[value='a']").checked = true;
  const mode = parts.shown.querySelector(":checked").value;
  let side = sides[mode === "b" ? "b" : "a"];
  if (same && drawnOf && drawnOf.texts.length >= side.texts.length) side = drawnOf; // the same tokens: they need not be drawn anew
  if (side !== drawnOf) {
    colours?.remove();
    drawnOf = side;
    colours = new ColouredText(parts.losses, { label: "The text, coloured by loss", gap: between(), colour, tell });
  }
  colours.append(side.texts.slice(colours.texts.length));
  colours.paint(all ? 0 : painted);
  parts.lossPicture.hidden = false;
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
  return parts.shown.querySelector(":checked").value;
}

function colour(i) {
  if (mode() !== "difference") {
    const side = sides[mode()];
    const loss = side.losses[i];
    return loss === undefined ? "" : strength(mode() === "b" ? "other" : "high", loss / side.last.uniform);
  }
  const by = gap(i);
  return by === null ? "" : strength(by > 0 ? "high" : "other", Math.abs(by) / FULL);
}

const FULL = 2; // nats of difference that have the full colour

/** By how much more A lost at a token than B. */
function gap(i) {
  const [a, b] = [sides.a?.losses[i], sides.b?.losses[i]];
  return a === undefined || b === undefined ? null : a - b;
}

/** A background on which text can be read. */
function strength(colour, x) {
  return `rgba(var(--${colour}), ${(0.5 * Math.max(0, Math.min(1, x))).toFixed(3)})`;
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
  parts.table.replaceChildren(...note, element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))), element("tbody", {}, ...rows));
}

/** What the colours mean. */
function legend(mode) {
  const swatch = (colour, x, text) => {
    const made = element("span", { class: "swatch" }, text);
    made.style.background = strength(colour, x);
    return made;
  };
  if (mode === "difference") {
    const steps = [1, 0.5, 0].map((x) => swatch("high", x, x ? `+${FULL * x}` : "0")).concat([0.5, 1].map((x) => swatch("other", x, `−${FULL * x}`)));
    parts.legend.replaceChildren("A is worse ", ...steps, " B is worse (nats)");
    return;
  }
  const { uniform } = sides[mode].last ?? sides.a.last ?? sides.b.last;
  const steps = [0, 0.25, 0.5, 0.75, 1].map((x) => swatch(mode === "b" ? "other" : "high", x, (x * uniform).toFixed(2)));
  parts.legend.replaceChildren("Expected ", ...steps, " as surprising as to a model that knows nothing, or more (nats)");
}

function progress(before) {
  const said = Object.entries(sides).filter(([, side]) => side?.last).map(([name, { last }]) => `${name.toUpperCase()} ${last.done.toLocaleString("en")} of ${counted(last.tokens, "token")}`);
  parts.progress.textContent = before + said.join(", ");
}

// -------------------------------------------------------------------------------------------------------- what is kept

function keep(values) {
  Object.assign(kept, values);
  try {
    sessionStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // The browser keeps nothing, or the text is too long for it: then it is not kept.
  }
}

function restore() {
  try {
    Object.assign(kept, JSON.parse(sessionStorage.getItem(KEY) ?? "{}"));
  } catch {
    sessionStorage.removeItem(KEY);
  }
}

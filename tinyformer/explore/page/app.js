/** The page: the model, the prompt and the views. */

import { LONGEST_TEXT, onVisit, follow as followAddress, tellPage } from "./address.js";
import { ask, latest } from "./api.js";
import { follow, learn, tell as tellWeights } from "./checkpoint.js";
import * as film from "./film.js";
import { page } from "./state.js";
import { counted } from "./text.js";
import { isWriting } from "./writer.js";
import * as model from "./model.js";
import * as write from "./write.js";
import * as attention from "./attention.js";
import * as inside from "./inside.js";
import * as numbers from "./numbers.js";
import * as compare from "./compare.js";
import * as whatif from "./whatif.js";

const VIEWS = { model, write, attention, inside, numbers, whatif, compare }; // each has begin(section), and show() when it is looked at
const byId = (id) => document.getElementById(id);
const line = byId("counted"); // how many tokens there are, or why none

let wanted = ""; // the model that was chosen last, which may be one that could not be read

/** Cut the prompt into tokens. They become the passage. */
const read = latest(async (signal) => {
  if (!wanted) return; // not before the models are known
  if (page.model !== wanted || !page.facts) {
    await choose(wanted);
    return;
  }
  const { model, facts } = page;
  const translates = facts.kind === "translation";
  const isEmpty = translates && !page.sourceText.trim();
  document.querySelector("main").hidden = isEmpty; // there is nothing to look at yet
  if (isEmpty) {
    page.set({ passage: null }, "passage");
    busy(false);
    return;
  }
  const source = translates ? await ask("encode", { model, text: page.sourceText, source: true }, signal) : null;
  const { ids, texts } = await ask("encode", { model, text: page.text }, signal);
  const passage = { model, ids, texts, source: source?.ids ?? [], sourceTexts: source?.texts ?? [] };
  page.set({ passage }, "passage");
  busy(false);
}, (message) => {
  if (message) busy(false);
  if (message && !page.passage) document.querySelector("main").hidden = true; // what is drawn there is of another model
  line.textContent = message && page.passage ? `${message}. The views still show the text before it.` : message;
  line.classList.toggle("trouble", Boolean(message));
});

/** Whether the prompt has changed since it was cut into tokens. */
function busy(is) {
  byId("prompt").setAttribute("aria-busy", String(is));
}

function count() {
  line.classList.remove("trouble");
  if (!page.passage) {
    line.textContent = page.facts.kind === "translation" ? "Type a sentence to translate." : "";
    return;
  }
  const { ids, source } = page.passage;
  const read = source.length ? `${counted(source.length, "token")} of the sentence, ` : "";
  const written = source.length ? " of its translation" : "";
  const { kind, longest } = page.facts;
  const beyond = kind === "language" && longest && ids.length > longest ? `; the model sees the last ${longest}` : "";
  line.textContent = `${read}${counted(ids.length, "token")}${written}${beyond}`;
}

const choose = latest(async (signal, model) => {
  wanted = model;
  busy(true);
  const ofModel = (question) => ask(question, { model }, signal);
  if (model !== page.model) page.step = null; // what is asked from here on is about this model
  const [facts, early] = await Promise.all([ofModel("facts"), isTyped() ? null : ofModel("opening"), learn(signal), film.open(model, signal)]);
  turn(facts.kind === "translation");
  const opening = early ?? (isTyped() ? null : await ofModel("opening"));
  if (!isTyped()) page.set({ text: opening.text, sourceText: opening.source }); // nobody has typed while it was asked for
  showTexts();
  page.set({ model, facts, passage: null, step: film.stepFor(model) }, "model");
  byId("model").value = model;
  tellFacts();
  tellWeights();
  byId("source-field").hidden = !page.translates;
  byId("text-name").textContent = page.translates ? "Translation" : facts.kind === "masked" ? `Text with ${facts.mask_name}` : "Text";
  if (!page.view) show("model");
  else tellAddress();
  await read();
}, (message) => {
  if (message) busy(false);
  if (message && !page.view) show("model");
  tellTrouble(message && page.passage ? `${message}. The views still show ${page.model}.` : message);
});

/** Say in the place of the model's sizes why it cannot be read; "" where it can. */
function tellTrouble(message) {
  byId("facts").textContent = message;
  byId("facts").classList.toggle("trouble", Boolean(message));
}

function tellFacts() {
  const { class: name, parameters, settings } = page.facts;
  const sizes = ["num_layers", "encoder_layers", "decoder_layers", "num_heads", "d_model", "block_size", "vocab_size"];
  const said = sizes.filter((key) => key in settings).map((key) => `${key} ${settings[key].toLocaleString("en")}`);
  byId("facts").classList.remove("trouble");
  byId("facts").textContent = [`${name}, ${counted(parameters, "parameter")}`, ...said].join(" · ");
}

/** The chosen model has new weights: read the text again. What was chosen stays, unless it is another kind of model now. */
const redraw = latest(async (signal) => {
  const facts = await ask("facts", { model: page.model }, signal);
  const isOther = JSON.stringify({ ...facts, settings: null }) !== JSON.stringify({ ...page.facts, settings: null });
  if (isOther) return choose(page.model);
  page.facts = facts;
  tellFacts();
  await read();
}, (message) => message && tellTrouble(`${message}. The views still show the weights before.`));

/** The texts of models that translate are kept apart from those of the others. */
function turn(translates) {
  if (page.translates !== translates) page.set({ translates, text: page.otherText, otherText: page.text });
}

/** Whether the texts that are shown are the user's. Otherwise they are what the model was opened with. */
function isTyped() {
  return page.typed[page.translates ? "translation" : "other"];
}

function showTexts() {
  for (const [field, key] of [["text", "text"], ["source", "sourceText"]]) {
    if (byId(field).value !== page[key]) byId(field).value = page[key];
  }
}

/** The address names the model, and holds short texts that the user has typed. */
function tellAddress() {
  const told = (text) => (isTyped() && text.length <= LONGEST_TEXT ? text : null);
  tellPage(page.view, { model: page.model, step: page.step, text: told(page.text), source: page.translates ? told(page.sourceText) : null });
}

/** Show what the address says. One from a link brings its texts; back and forward leave those that are there. */
async function visit() {
  const { view, values, isLink } = followAddress();
  const hasText = isLink && ("text" in values || "source" in values);
  if (hasText) takeTexts(values);
  if (Object.hasOwn(VIEWS, view)) page.view = view;
  film.link(values.step);
  if (page.models.includes(values.model) && values.model !== wanted) await choose(values.model);
  else if (hasText) await read();
  film.followLink();
  if (page.view) show(page.view);
}

function takeTexts({ text = "", source }) {
  busy(true);
  turn(source !== undefined);
  typedNow();
  page.set({ text, sourceText: source ?? page.sourceText });
  showTexts();
}

function typedNow() {
  page.set({ typed: { ...page.typed, [page.translates ? "translation" : "other"]: true } });
}

function show(view) {
  for (const name of Object.keys(VIEWS)) {
    const tab = byId(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    byId(`view-${name}`).hidden = name !== view;
  }
  page.set({ view });
  page.trail(view === "model" ? [] : [byId(`tab-${view}`).textContent]);
  document.title = `${byId(`tab-${view}`).textContent} – tinyformer explorer`;
  if (page.facts) tellAddress();
  VIEWS[view].show();
}

/** Say at the head of a view where it stands: "Model › Layer 2 › Head 3". */
function tellTrail({ detail }) {
  byId("trail").hidden = page.view === "model" && !detail.length;
  byId("trail").lastChild.textContent = detail.map((name) => ` › ${name}`).join("");
}

/** Escape goes back to the model, unless something else has taken the key. */
function goBack(event) {
  if (event && (event.key !== "Escape" || event.defaultPrevented || event.target.matches?.("input, select, textarea"))) return;
  if (page.view === "model") model.leave();
  else {
    show("model");
    byId("tab-model").focus();
  }
}

/** The arrow keys move between tabs, as is usual. */
function moveTab(event) {
  const names = Object.keys(VIEWS);
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  const next = names[(names.indexOf(page.view) + by + names.length) % names.length];
  show(next);
  byId(`tab-${next}`).focus();
}

function typed(field, key) {
  let soon = null;
  field.value = page[key];
  field.addEventListener("input", () => {
    if (key === "sourceText" && !isTyped()) page.set({ text: "" }); // the translation was that of another sentence
    typedNow();
    page.set({ [key]: field.value });
    showTexts();
    tellAddress();
    busy(true);
    clearTimeout(soon);
    soon = setTimeout(read, 150);
  });
}

async function begin() {
  page.restore();
  for (const [name, view] of Object.entries(VIEWS)) {
    view.begin(byId(`view-${name}`));
    byId(`tab-${name}`).addEventListener("click", () => show(name));
  }
  document.querySelector("nav").addEventListener("keydown", moveTab);
  page.addEventListener("trail", tellTrail);
  byId("trail").firstElementChild.addEventListener("click", () => goBack());
  window.addEventListener("keydown", goBack);
  typed(byId("text"), "text");
  typed(byId("source"), "sourceText");
  byId("model").addEventListener("change", (event) => choose(event.target.value));
  page.addEventListener("passage", () => {
    count();
    if (page.view) VIEWS[page.view].show();
  });
  page.addEventListener("weights", () => {
    tellWeights();
    if (page.view === "compare") compare.show();
  });
  const { view, values, isLink } = followAddress();
  if ((isLink || !isTyped()) && ("text" in values || "source" in values)) takeTexts(values);
  if (values.model) page.model = values.model;
  film.link(values.step);
  if (Object.hasOwn(VIEWS, view)) page.view = view;
  if (page.view && !Object.hasOwn(VIEWS, page.view)) page.view = "";
  if (page.view) show(page.view);
  window.addEventListener("returned", () => connect());
  onVisit(visit);
  film.begin(byId("film"), () => {
    tellWeights();
    tellAddress();
  });
  await connect();
  follow(redraw, isWriting);
}

/** Ask for the models, and choose the one that was chosen before. */
const connect = latest(async (signal) => {
  const { folders, models, beside } = await ask("about", {}, signal);
  Object.assign(page, { folders, models, beside });
  byId("model").replaceChildren(...models.map((name) => new Option(name, name)));
  const before = wanted || page.model;
  await choose(models.includes(before) ? before : models[0]);
}, (message) => { line.textContent = message; });

begin();

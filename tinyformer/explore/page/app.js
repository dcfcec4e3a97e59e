/** The page: the model, the prompt and the four views. */

import { ask, latest } from "./api.js";
import { page } from "./state.js";
import * as write from "./write.js";
import * as attention from "./attention.js";
import * as inside from "./inside.js";
import * as compare from "./compare.js";

const VIEWS = { write, attention, inside, compare }; // each has begin(section), and show() when it is looked at
const byId = (id) => document.getElementById(id);
const counted = byId("counted");

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
  counted.textContent = message && page.passage ? `${message}. The views still show the text before it.` : message;
  counted.classList.toggle("trouble", Boolean(message));
});

/** Whether the prompt has changed since it was cut into tokens. */
function busy(is) {
  byId("prompt").setAttribute("aria-busy", String(is));
}

function count() {
  counted.classList.remove("trouble");
  if (!page.passage) {
    counted.textContent = page.facts.kind === "translation" ? "Type a sentence to translate." : "";
    return;
  }
  const { ids, source } = page.passage;
  const read = source.length ? `${source.length} tokens of the sentence, ` : "";
  const written = source.length ? " of its translation" : "";
  const { kind, longest } = page.facts;
  const beyond = kind === "language" && longest && ids.length > longest ? `; the model sees the last ${longest}` : "";
  counted.textContent = `${read}${ids.length} token${ids.length === 1 ? "" : "s"}${written}${beyond}`;
}

const choose = latest(async (signal, model) => {
  wanted = model;
  busy(true);
  const facts = await ask("facts", { model }, signal);
  const translates = facts.kind === "translation";
  if (page.translates !== translates) {
    page.set({ translates, text: page.otherText, otherText: page.text });
    byId("text").value = page.text;
  }
  page.set({ model, facts, passage: null }, "model");
  byId("model").value = model;
  const { class: name, parameters, settings } = facts;
  const sizes = ["num_layers", "encoder_layers", "decoder_layers", "num_heads", "d_model", "block_size", "vocab_size"];
  const said = sizes.filter((key) => key in settings).map((key) => `${key} ${settings[key].toLocaleString("en")}`);
  byId("facts").textContent = [`${name}, ${parameters.toLocaleString("en")} parameters`, ...said].join(" · ");
  byId("source-field").hidden = !translates;
  const fills = facts.kind === "masked" ? "Text with [MASK] where a token is to be filled in" : "Text";
  byId("text-name").textContent = translates ? "Its translation, as far as it is given" : facts.kind === "language" ? "Text to go on from" : fills;
  await read();
}, (message) => {
  if (message) busy(false);
  byId("facts").textContent = message;
  byId("facts").classList.toggle("trouble", Boolean(message));
});

function show(view) {
  for (const name of Object.keys(VIEWS)) {
    const tab = byId(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
    byId(`view-${name}`).hidden = name !== view;
  }
  page.set({ view });
  VIEWS[view].show();
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
    page.set({ [key]: field.value });
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
  typed(byId("text"), "text");
  typed(byId("source"), "sourceText");
  byId("model").addEventListener("change", (event) => choose(event.target.value));
  page.addEventListener("passage", () => {
    count();
    VIEWS[page.view].show();
  });
  show(Object.hasOwn(VIEWS, page.view) ? page.view : "write");
  window.addEventListener("returned", () => connect());
  await connect();
}

/** Ask for the models, and choose the one that was chosen before. */
const connect = latest(async (signal) => {
  const { models } = await ask("about", {}, signal);
  page.models = models;
  byId("model").replaceChildren(...models.map((name) => new Option(name, name)));
  const before = wanted || page.model;
  await choose(models.includes(before) ? before : models[0]);
}, (message) => { counted.textContent = message; });

begin();

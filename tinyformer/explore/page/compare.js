/** The view "compare": two models on the same prompt, and the loss of each token of a text. */

import { addressed } from "./address.js";
import { different, folderOf } from "./checkpoint.js";
import { keep, kept, restore } from "./comparekept.js";
import * as losses from "./losses.js";
import * as next from "./nextofboth.js";
import { page } from "./state.js";
import { element } from "./text.js";
import * as writing from "./writeboth.js";

const parts = {}; // the elements that change, by name
let other = ""; // the name of model B
let drawn = ""; // what the page showed when this view last asked
let drawnWeights = ""; // and with which weights of A and B

let linked = ""; // model B of an address
const remember = addressed("compare", ["other"], ({ other: name }) => (linked = name ?? ""));

/** Fill the section of this view once. */
export function begin(section) {
  restore();
  parts.first = element("select", { onchange: () => chooseFirst(parts.first.value) });
  parts.second = element("select", { onchange: chooseSecond });
  parts.note = element("p", { class: "note" });
  parts.two = element("div", {});
  parts.losses = element("div", {});
  next.begin(parts.two);
  writing.begin(parts.two);
  losses.begin(parts.losses);
  section.replaceChildren(
    element("div", { class: "controls" }, element("label", {}, "Model A ", parts.first), element("label", {}, "Model B ", parts.second)),
    parts.note, parts.two, parts.losses);
}

/** Model A is the one that is chosen at the head of the page. */
function chooseFirst(name) {
  const head = document.getElementById("model");
  head.value = name;
  head.dispatchEvent(new Event("change"));
}

function chooseSecond() {
  keep({ others: { ...kept.others, [page.facts.kind]: parts.second.value } });
  show();
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
  parts.note.textContent = others.length ? sameAs() : alone();
  const predicts = page.facts.kind !== "encoder";
  const tells = page.facts.labels !== null; // classes
  parts.losses.hidden = !predicts;
  if (!predicts && !(tells && others.length)) {
    parts.two.hidden = true;
    parts.note.textContent = `This model predicts no tokens, so there are no predictions and no losses to compare.${tells ? " What it says of the text is in Write." : ""}`;
    return;
  }
  const fills = page.facts.kind === "masked";
  next.entitle(!predicts ? "The classes of the text" : fills ? "The first mask" : "The next token");
  writing.offer(other, predicts && !fills);
  if (!predicts) parts.note.textContent = "";
  const now = JSON.stringify([page.model, other, page.text, page.sourceText]);
  const weights = JSON.stringify([page.step, ...[page.model, other].map((name) => page.weights[name]?.stamp)]);
  if (now === drawn && weights === drawnWeights) return;
  if (now !== drawn) writing.clear(); // what was written stays where only the weights are new
  [drawn, drawnWeights] = [now, weights];
  if (others.length) next.compareNext(other);
  if (predicts) losses.show(other);
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
  const same = page.step === null ? page.weights[page.model]?.same ?? [] : [];
  return same.length ? `${same.join(" and ")} ${same.length === 1 ? "is" : "are"} left out: the weights are the same as those of ${page.model}.` : "";
}

/** What to do where there is nothing to compare with. */
function alone() {
  const why = page.models.length > 1 ? `${page.models.join(" and ")} have the same weights` : "There is one model only";
  const folder = folderOf(page.model) || page.folders[0];
  const how = `tinyformer explore ${folder} ${page.beside[0] ?? "ANOTHER"}`;
  return `${why}, so there is nothing to compare. To compare two runs, start the explorer with both folders: ${how}. The model's losses are below.`;
}

function fill(select, names, chosen) {
  if (names.join("\n") !== [...select.options].map(({ value }) => value).join("\n")) select.replaceChildren(...names.map((name) => new Option(name, name)));
  select.value = chosen;
}

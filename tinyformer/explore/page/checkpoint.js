/** Which weights are shown, in the line at the head of the page; and following a run that writes new ones. */

import { ask, latest } from "./api.js";
import { look as lookAtFilm } from "./film.js";
import { page } from "./state.js";

const EVERY = 2000; // milliseconds between two looks at the files
const line = document.getElementById("weights");
let drawnAgain = ""; // when the views were drawn again last, in words

/**
 * Look at the files now and then, as long as the page is seen.
 * @param {() => Promise<void>} draw draws the views again, as the chosen model's weights are new
 * @param {() => boolean} isBusy whether that has to wait
 */
export function follow(draw, isBusy) {
  const look = async () => {
    if (!document.hidden && page.facts && !isBusy()) await watch(draw);
    setTimeout(look, EVERY);
  };
  setTimeout(look, EVERY);
  page.addEventListener("model", () => (drawnAgain = ""));
}

const watch = latest(async (signal, draw) => {
  const before = page.weights[page.model]?.stamp;
  const model = page.model;
  await Promise.all([learn(signal), lookAtFilm(signal)]);
  const now = page.weights[model];
  if (page.step !== null) return; // a snapshot is shown, whose weights stay
  if (model !== page.model || !now?.stamp || now.stamp === before) return;
  const { facts } = page;
  await draw();
  if (before && page.facts !== facts) drawnAgain = ` · new: the views were drawn again at ${time(Date.now(), { timeStyle: "medium" })}`;
  tell();
}, () => {});

/** Learn which weights all models have. The event "weights" tells that they are others. */
export async function learn(signal) {
  const { models } = await ask("checkpoints", {}, signal);
  const weights = Object.fromEntries(models.map(({ name, ...one }) => [name, one]));
  const changed = JSON.stringify(weights) !== JSON.stringify(page.weights);
  page.weights = weights;
  if (changed) page.dispatchEvent(new Event("weights"));
}

/** Say which weights the chosen model has. */
export function tell() {
  if (page.step !== null) {
    line.textContent = `Weights: the snapshot of step ${page.step.toLocaleString("en")}, in float16`;
    return;
  }
  const { error, step, validation_loss: loss, measured, written, same } = page.weights[page.model] ?? {};
  if (error || !written) {
    line.textContent = error ?? "";
    return;
  }
  const parts = [`Weights: ${kindOf(page.model)}`];
  if (step !== null) parts.push(`step ${step.toLocaleString("en")}`);
  if (loss !== null) parts.push(`validation loss ${loss.toFixed(4)}${measured === step ? "" : ` at step ${measured.toLocaleString("en")}`}`);
  parts.push(`written ${time(1000 * written, { dateStyle: "medium", timeStyle: "medium" })}`);
  if (same.length) parts.push(`the same as ${same.map((name) => (folderOf(name) === folderOf(page.model) ? kindOf(name) : name)).join(", ")}`);
  const said = parts.join(" · ") + drawnAgain;
  if (line.textContent !== said) line.textContent = said;
}

/** The names of models with other weights than this one has. */
export function different(model) {
  const same = page.step === null ? page.weights[model]?.same ?? [] : []; // a snapshot may be compared with any
  return page.models.filter((name) => name !== model && !same.includes(name));
}

/** The folder in a model's name, "" where there is only one folder; and what is after it: best, latest or pretrained. */
export function folderOf(model) {
  return model.slice(0, Math.max(0, model.lastIndexOf(": ")));
}

function kindOf(model) {
  return model.slice(model.lastIndexOf(": ") + 1).trim();
}

function time(milliseconds, how) {
  return new Date(milliseconds).toLocaleString("en-GB", how);
}

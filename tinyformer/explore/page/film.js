/** Training as a film: the strip at the head of the page, whose slider chooses the step that all views show. */

import { forget } from "./answers.js";
import { askAnew, askFrame, latest, newest, Refusal } from "./api.js";
import { Curve, END } from "./filmcurve.js";
import { download, picturesIn, slug } from "./save.js";
import { page } from "./state.js";
import { filmOf } from "./svgpicture.js";
import { counted, element, troubleLine } from "./text.js";

const SPEEDS = [1, 2, 4, 8]; // frames a second
const part = {}; // the elements of the strip, by name
const damaged = new Map(); // the snapshots that could not be shown: by step, the stamp that they had
let changed = () => {}; // is called when another step is shown
let refuse = () => {};
let linked = null; // the step of an address
let playing = null; // the timer of the next frame
let isLive = false; // whether the newest snapshot of a run that trains is followed
let saving = false;

/**
 * Fill the strip once.
 * @param {HTMLElement} section
 * @param {() => void} tell is called when another step is shown
 */
export function begin(section, tell) {
  changed = tell;
  const make = (name, kind, properties = {}, ...children) => (part[name] = element(kind, properties, ...children));
  let trouble = null;
  [trouble, refuse] = troubleLine();
  make("play", "button", { type: "button", class: "first", onclick: toggle, title: "Space or K" }, "Play");
  make("slider", "input", { type: "range", id: "film-step", min: 0, max: END, step: 1, "aria-label": "Step of training", oninput: () => choose(part.curve.nearest(Number(part.slider.value))) });
  make("speed", "select", {}, ...SPEEDS.map((speed) => new Option(`${speed} a second`, speed, speed === 4, speed === 4)));
  make("picture", "select", { onfocus: list, onpointerdown: list });
  make("save", "button", { type: "button", onclick: save }, "Save film");
  make("told", "p", { class: "told" });
  make("progress", "p", { class: "note", role: "status" });
  part.curve = new Curve(choose);
  const label = (text, field) => element("label", {}, text, " ", field);
  part.more = element("details", { ontoggle: list }, element("summary", {}, "More"), element("div", { class: "controls" }, label("Picture", part.picture), part.save));
  const row = element("div", { class: "strip" }, part.play, element("div", { class: "time" }, part.curve.box, part.slider), part.told, label("Speed", part.speed), part.more);
  section.append(row, part.progress, trouble);
  section.addEventListener("keydown", press);
  window.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && saving) event.preventDefault();
    if (event.key === "Escape") saving = false;
  });
  page.addEventListener("passage", () => part.more.open && setTimeout(list, 100));
  for (const event of ["model", "weights"]) page.addEventListener(event, draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

/** The step that an address names, which is shown once its model is. */
export function link(step) {
  linked = /^[0-9]+$/.test(step ?? "") ? Number(step) : null;
}

/** Show the step of an address that was followed; without one, the model's own weights. */
export function followLink() {
  if (linked !== page.step && (linked === null || stepFor() !== null)) show(linked);
  linked = null;
}

/** The step to show of a model that is opened: that of the address if there is such a snapshot. */
export function stepFor() {
  const step = page.film.snapshots.some((one) => one.step === linked && !one.error) ? linked : null;
  if (linked !== null && step === null) refuse(`There is no snapshot of step ${linked.toLocaleString("en")}: this is ${page.model}.`);
  linked = null;
  return step;
}

/** Learn the film of a model's run, and show the strip if there is one. */
export async function open(model, signal) {
  stop();
  refuse("");
  const film = await askAnew("film", { model }, signal);
  forget(); // its snapshots may be others than when it was looked at before
  take(film);
}

/** Look whether there are new snapshots. The newest is followed where nobody has chosen another. */
export async function look(signal) {
  const { model, film: before } = page;
  const film = await askAnew("film", { model }, signal);
  if (model !== page.model) return;
  if (JSON.stringify(film) !== JSON.stringify(before)) renew(film, before);
  if (page.step !== null && !steps().includes(page.step)) {
    refuse(`The snapshot of step ${page.step.toLocaleString("en")} is no longer there.`);
    await show(null);
  } else if ((isLive || (page.step === null && film.training)) && followed() !== page.step) await show(followed());
}

function renew(film, before) {
  const stamps = new Map(film.snapshots.map(({ step, stamp }) => [step, stamp]));
  if (before.snapshots.some(({ step, stamp }) => stamps.get(step) !== stamp)) forget();
  take(film);
}

/** The step to follow while the run trains: the newest snapshot's, unless the model's own weights are as new. */
function followed() {
  const last = steps().at(-1);
  isLive = page.film.training && last > (page.weights[page.model]?.step ?? Infinity);
  return isLive ? last : null;
}

function take(film) {
  page.film = film;
  document.getElementById("film").hidden = !film.snapshots.length;
  const bad = film.snapshots.filter(({ error }) => error);
  if (bad.length) refuse(`${bad[0].error}${bad.length > 1 ? ` (and ${counted(bad.length - 1, "other snapshot")})` : ""}: the film continues without it.`);
  draw();
}

/** The steps that can be shown. */
function steps() {
  return page.film.snapshots.filter((one) => !one.error && damaged.get(one.step) !== one.stamp).map(({ step }) => step);
}

/** The place on the slider of what is shown; the model's own weights are at its end. */
function place() {
  return page.step === null || isLive ? steps().length : steps().indexOf(page.step);
}

/** Draw the strip. */
function draw() {
  const [all, at] = [steps(), place()];
  const end = page.film.training ? "live" : page.model.slice(page.model.lastIndexOf(": ") + 1).trim();
  const step = page.step ?? page.weights[page.model]?.step ?? null;
  const last = Math.max(all.at(-1) ?? 0, page.film.losses.at(-1)?.[0] ?? 0);
  const name = at === all.length ? `${end}${step === null ? "" : `, step ${step.toLocaleString("en")}`}` : `step ${step.toLocaleString("en")}`;
  page.told = `${name} of ${last.toLocaleString("en")}${step === null ? "" : lossAt(step)}`;
  part.curve.draw(page.film.losses, all, at, last);
  part.slider.value = part.curve.places[at];
  part.slider.setAttribute("aria-valuetext", page.told);
  if (part.told.textContent !== page.told) part.told.textContent = part.told.title = page.told;
  part.play.textContent = playing === null ? "Play" : "Pause";
}

/** The losses at a step in words. The training loss is a mean over some steps. */
function lossAt(step) {
  const rows = page.film.losses;
  const said = [];
  const at = rows.findIndex((row) => row[0] >= step && row[1] !== null);
  if (at >= 0 && step > 0) {
    const [last, loss, , first] = rows[at];
    const of = first === last ? `of step ${last.toLocaleString("en")}` : `mean of steps ${first.toLocaleString("en")} to ${last.toLocaleString("en")}`;
    said.push(`training loss ${loss.toFixed(2)} (${of})`);
  }
  const measured = rows.find((row) => row[0] === step && row[2] !== null);
  if (measured) said.push(`validation loss ${measured[2].toFixed(2)}`);
  return said.map((one) => ` · ${one}`).join("");
}

/** The user has chosen a place of the slider. */
function choose(at) {
  stop();
  isLive = false;
  const step = steps()[at] ?? null;
  return show(step === null && page.film.training ? followed() : step);
}

/** Show a step: first its answers are fetched, so that nothing is seen of the change but the change. */
const show = newest(async (step) => {
  const { model } = page;
  try {
    if (step !== null) await askFrame(step);
  } catch (error) {
    if (model !== page.model) return;
    if (!(error instanceof Refusal)) throw error;
    damaged.set(step, page.film.snapshots.find((one) => one.step === step)?.stamp);
    draw();
    throw new Refusal(`${error.message}: the film continues without step ${step.toLocaleString("en")}.`);
  }
  if (model !== page.model) return; // another was chosen meanwhile
  page.step = step;
  page.isFrame = true; // what is drawn until the end of this task takes the place of the frame before
  setTimeout(() => (page.isFrame = false));
  page.facts = { ...page.facts }; // what is known of the weights before is not known of these
  draw();
  if (page.passage) page.set({ passage: { ...page.passage } }, "passage");
  changed();
  requestAnimationFrame(() => setTimeout(askNext)); // once this one is painted, and has asked all its questions
}, (message) => message && refuse(message));

/** Ask what the next frame needs. What is wrong with it is told when it is to be shown. */
function askNext() {
  const after = steps()[place() + 1];
  if (after !== undefined && page.step !== null) askFrame(after).catch(() => {});
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.localName === "select") return;
  const by = { ArrowRight: 1, ArrowUp: 1, PageUp: 1, ArrowLeft: -1, ArrowDown: -1, PageDown: -1 }[event.key];
  const isButton = event.target.matches("button, summary");
  if (event.key === "k" || event.key === "K" || (event.key === " " && !isButton)) toggle();
  else if (by) choose(Math.max(0, Math.min(steps().length, place() + by)));
  else return;
  event.preventDefault();
}

function toggle() {
  if (playing !== null) stop();
  else play();
}

/** Show one step after the other, up to the end. From the end it begins again. */
async function play() {
  let next = page.step === null || isLive ? 0 : place() + 1;
  isLive = false;
  playing = 0;
  const own = (play.run = {});
  while (playing !== null && play.run === own) {
    const began = performance.now();
    const step = steps()[next] ?? null;
    await show(step);
    if (playing === null || play.run !== own) return;
    if (page.step !== step && steps()[next] !== step) continue; // it could not be shown, and is no longer among the steps
    if (page.step !== step || step === null) break; // there was no answer, or it was the last
    next = place() + 1;
    await new Promise((done) => (playing = setTimeout(done, Math.max(0, 1000 / part.speed.value - (performance.now() - began)))));
  }
  if (play.run === own) stop();
}

function stop() {
  if (playing === null) return;
  playing = null;
  draw();
}

/** List the pictures of the view that can be saved as a film. */
function list() {
  const titles = page.view ? picturesIn(document.getElementById(`view-${page.view}`)).map(({ title }) => title()) : [];
  if (titles.join("\n") === [...part.picture.options].map(({ text }) => text).join("\n")) return;
  const chosen = Math.max(0, part.picture.selectedIndex);
  part.picture.replaceChildren(...titles.map((title, at) => new Option(title, at)));
  part.picture.selectedIndex = Math.min(chosen, titles.length - 1);
}

/** Save the chosen picture at each step as one animated SVG. */
const save = latest(async () => {
  list();
  const [at, before, wasLive, frames, all] = [part.picture.selectedIndex, page.step, isLive, [], steps()];
  if (at < 0 || saving || !all.length) return;
  stop();
  isLive = false;
  const { view, model } = page;
  const title = part.picture.options[at].text;
  saving = true;
  for (const step of all) {
    part.progress.textContent = `Saving the film: frame ${frames.length + 1} of ${all.length}. Escape stops.`;
    await show(step);
    const isDrawn = (await settled()) && saving && page.step === step && page.view === view && page.model === model;
    const picture = picturesIn(document.getElementById(`view-${view}`))[at];
    const svg = isDrawn && picture ? await picture.asSvg() : null;
    if (!svg) break;
    frames.push(svg);
  }
  const isWhole = saving && frames.length === all.length;
  saving = false;
  part.progress.textContent = isWhole ? "" : "The film was not saved.";
  if (page.model === model) await show(wasLive ? followed() : before);
  if (!isWhole) return;
  const film = filmOf(`${title}: ${model}, ${counted(frames.length, "step")}`, frames, 1 / part.speed.value);
  download(new Blob([film], { type: "image/svg+xml" }), `${slug(`${model} ${title} film`)}.svg`);
}, refuse);

/** Wait until what was asked for is drawn, as long as the film is to be saved. Returns whether it is. */
async function settled() {
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const isBusy = () => document.querySelector(`#view-${page.view} .waiting, #view-${page.view} [aria-busy='true']`);
  await frame();
  while (saving && isBusy()) await frame();
  return saving;
}

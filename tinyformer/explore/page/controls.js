/** The row that says how tokens are chosen. */

import { page } from "./state.js";
import { element } from "./text.js";

const SLIDERS = [
  { key: "temperature", name: "Temperature", min: 0, max: 2, step: 0.05, told: (x) => (x === 0 ? "0: the likeliest" : x.toFixed(2)) },
  { key: "top_k", name: "Top-k", min: 0, max: 100, step: 1, told: (x) => (x === 0 ? "0: all" : String(x)) },
  { key: "top_p", name: "Top-p", min: 0.01, max: 1, step: 0.01, told: (x) => x.toFixed(2) },
];

/**
 * The controls of page.sampling. Every change tells everyone by the event "sampling".
 * @param {HTMLElement} parent gets them
 * @param {boolean} [seeded] whether there is a seed, too
 */
export function samplingControls(parent, seeded = true) {
  const shown = SLIDERS.map((slider) => sliderOf(parent, slider));
  if (seeded) shown.push(numberOf(parent, { name: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, get: () => page.sampling.seed, set: (seed) => change({ seed }) }));
  const update = () => shown.forEach((show) => show());
  page.addEventListener("sampling", update);
  update();
}

function change(values) {
  page.set({ sampling: { ...page.sampling, ...values } }, "sampling");
}

/** A slider with its value beside its name. Returns what shows the value again. */
function sliderOf(parent, { key, name, min, max, step, told }) {
  const output = element("span", { class: "value" }); // no <output>: the label would name that, and not the slider
  const input = element("input", { type: "range", min, max, step, name: key, "aria-label": name });
  input.addEventListener("input", () => change({ [key]: Number(input.value) }));
  parent.append(element("label", {}, element("span", {}, `${name} `, output), input));
  return () => {
    const value = page.sampling[key];
    if (Number(input.value) !== value) input.value = value;
    output.textContent = told(value);
    input.setAttribute("aria-valuetext", told(value));
  };
}

/**
 * A whole number. One that is out of range is brought into it when the field is left, and a line says so.
 * @param {HTMLElement} parent
 * @param {{name: string, label?: string, id?: string, min: number, max: number, get: () => number, set: (value: number) => void}} how
 * @returns {() => void} shows the value again
 */
export function numberOf(parent, { name, label = name, id = "", min, max, get, set }) {
  const line = element("p", { class: "range", role: "status", hidden: true });
  const input = element("input", { type: "number", min, max, step: 1, required: true, id, name: name.toLowerCase() });
  const range = `${name} goes from ${min.toLocaleString("en")} to ${max.toLocaleString("en")}, in whole numbers`;
  const say = (text) => {
    line.textContent = text;
    line.hidden = !text;
  };
  input.addEventListener("input", () => {
    const bad = !input.checkValidity();
    input.setAttribute("aria-invalid", String(bad));
    say(bad ? `${range}.` : "");
    if (!bad) set(Number(input.value));
  });
  input.addEventListener("change", () => {
    if (input.checkValidity()) return;
    const typed = input.value;
    const value = typed === "" ? get() : Math.max(min, Math.min(max, Math.round(Number(typed))));
    input.value = value;
    input.setAttribute("aria-invalid", "false");
    say(`${range}: ${typed === "" ? "what was typed is none, so it stays" : `${shortened(typed)} became`} ${value.toLocaleString("en")}.`);
    set(value);
  });
  parent.append(element("label", {}, `${label} `, input), line);
  const show = () => {
    if (input.value !== String(get()) && document.activeElement !== input) input.value = get();
  };
  show();
  return show;
}

function shortened(text) {
  return text.length > 30 ? `${text.slice(0, 30)}…` : text;
}

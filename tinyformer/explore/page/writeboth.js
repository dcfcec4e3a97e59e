/** Two models that go on from the same prompt. A part of the view "compare". */

import { Refusal, latest, stream } from "./api.js";
import { ColouredText, tint } from "./colouredtext.js";
import { keep, kept, passageOf } from "./comparekept.js";
import { numberOf } from "./controls.js";
import { page } from "./state.js";
import { saveSvg } from "./save.js";
import { able, counted, element, number, onPress, percent, troubleLine, visible } from "./text.js";

const part = {}; // the elements, by name
let other = ""; // the name of model B

/** Fill this part of the view once. */
export function begin(box) {
  part.go = element("button", { type: "button", class: "first" }, "Continue with both");
  part.stop = element("button", { type: "button", "aria-disabled": "true" }, "Stop");
  part.sampling = element("p", { class: "note" });
  part.written = element("div", { class: "both" });
  [part.trouble, part.refuse] = troubleLine();
  const controls = element("div", { class: "controls" }, part.go, part.stop);
  numberOf(controls, { name: "Length", min: 1, max: 5000, get: () => kept.length, set: (length) => keep({ length }) });
  part.all = element("div", {}, element("h2", {}, "Go on from the same prompt"), controls, part.sampling, part.trouble, part.written);
  box.append(part.all);
  onPress(part.go, () => write(true));
  onPress(part.stop, () => write(false));
  page.addEventListener("sampling", tellSampling);
}

/** Be ready to write with this model as B, if it writes. */
export function offer(name, writes) {
  other = name;
  part.all.hidden = !writes;
  tellSampling();
}

/** Stop, and take away what was written. */
export function clear() {
  write(false);
  part.written.replaceChildren();
}

function tellSampling() {
  const { temperature, top_k, top_p, seed } = page.sampling;
  part.sampling.textContent = `Both with temperature ${temperature}, top-k ${top_k || "off"}, top-p ${top_p === 1 ? "off" : top_p} and seed ${seed}: they are set in Write. The stronger the colour, the likelier the token was.`;
}

const write = latest(async (signal, start) => {
  able(part.go, !start);
  able(part.stop, start);
  if (!start) return;
  const { length } = kept;
  const names = [page.model, other];
  const columns = ["A", "B"].map((name, i) => {
    const [trouble, refuse] = troubleLine();
    return { place: element("div", {}), heading: element("h3", {}, `${name}: ${names[i]}`), trouble, refuse };
  });
  const save = saveSvg(() => `What ${names.join(" and ")} write`, () => [part.written]);
  save.hidden = true;
  part.written.replaceChildren(...columns.map(({ heading, trouble, place }) => element("div", {}, heading, trouble, place)), save);
  const { sampling } = page;
  await Promise.all(columns.map((column, i) => writeOne(column, names[i], length, sampling, signal)));
  if (signal.aborted) return;
  save.hidden = !part.written.querySelector(".tokens:not([hidden])");
  able(part.go, true);
  able(part.stop, false);
}, (message) => {
  if (message) {
    able(part.go, true);
    able(part.stop, false);
  }
  part.refuse(message);
});

/** Let one model write, and show each token as it comes. */
async function writeOne({ place, heading, refuse }, model, length, sampling, signal) {
  const found = [];
  place.hidden = heading.hidden = true; // until there is a token
  const text = new ColouredText(place, {
    label: `What ${model} writes`,
    colour: (i) => tint("high", found[i].probability),
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
    refuse(error.message);
  }
}

/** Sentences as points: what a model of sentences holds to be alike lies close together. */

import { ask, latest } from "./api.js";
import { page, whenSeen } from "./state.js";
import { coordinatesOf } from "./map.js";
import { Scatter } from "./scatter.js";
import { counted, element, percent, troubleLine } from "./text.js";

let typed = null; // what the user wrote, also for the next model; null: the text of the page

/**
 * Draw the field for sentences, the map of them, and the list of them.
 * @returns {(() => void)|string} what takes it away; "" for a model that is none of sentences
 */
export function drawSentences(box, { model, facts }) {
  if (!facts.sentences) return "";
  const field = element("textarea", { id: "sentences-text", rows: 6, spellcheck: false, autocomplete: "off", value: typed ?? page.text });
  const draw = element("button", { type: "button", id: "sentences-draw" }, "Draw");
  const [trouble, refuse] = troubleLine();
  const place = element("div");
  let scatter = null;
  const clear = () => {
    scatter?.remove();
    scatter = null;
    place.replaceChildren();
  };
  const load = latest(async (signal) => {
    const sentences = field.value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!sentences.length) {
      clear();
      refuse("Write some sentences, each on a line of its own.");
      return;
    }
    const answer = await ask("sentences", { model, sentences }, signal);
    if (!place.isConnected) return; // this part of the page is gone
    clear();
    scatter = sentenceMap(place, sentences, answer);
  }, (message) => {
    refuse(message);
    if (message) clear();
  });
  field.addEventListener("input", () => { typed = field.value; });
  draw.addEventListener("click", () => load());
  box.append(element("label", {}, "Sentences, one a line", field), element("div", { class: "controls" }, draw), trouble, place);
  const forget = whenSeen(place, () => load());
  place.append(element("p", { class: "note" }, "…")); // something to be seen
  return () => {
    forget();
    clear();
  };
}

/** The map of sentences, and a list of them: a click on one tells its nearest, and marks them on the map. */
function sentenceMap(place, sentences, { coordinates, explained, nearest }) {
  const near = (i) => nearest[i].map(({ sentence, cosine }) => ({ sentence, line: `${cosine.toFixed(3)} “${sentences[sentence]}”` }));
  const tell = (i) => `“${sentences[i]}”${nearest[i].length ? `: nearest ${near(i)[0].line}` : ""}`;
  const [across, up] = explained.map(percent);
  const lines = [`Axes: the first two principal components, → ${across} and ↑ ${up} of the variance`];
  const holder = element("div");
  const chosen = element("p", { id: "sentences-chosen", role: "status" });
  const found = element("ol", { id: "sentences-nearest", "aria-label": "The nearest sentences, by the cosine" });
  const list = element("ul", { class: "found", id: "sentences-list", "aria-label": "The sentences. Enter shows the nearest of one." });
  const said = `${counted(sentences.length, "sentence")}. ${across} of the variance lies along the axis to the right and ${up} along the axis upwards.`;
  place.replaceChildren(element("p", { id: "sentences-explained" }, said), holder, list, chosen, found);
  const scatter = new Scatter(holder, { points: coordinatesOf(coordinates), names: sentences, tell, lines, note: "○ the chosen sentence · ● those nearest to it", label: "The sentences" });
  const choose = (i) => {
    scatter.light([i], nearest[i].map(({ sentence }) => sentence));
    chosen.textContent = `Nearest to “${sentences[i]}”, with the cosine:`;
    found.replaceChildren(...near(i).map(({ line }) => element("li", {}, line)));
  };
  list.append(...sentences.map((text, i) => element("li", {}, element("button", { type: "button", onclick: () => choose(i) }, text))));
  choose(sentences.length - 1);
  return scatter;
}

/** Named heads: the scores of the model's heads, and the names that these give them. */

import { whenSeen } from "./state.js";
import { ask, latest } from "./api.js";
import { labelOf } from "./attention.js";
import { distance, headNames } from "./headnames.js";
import { openHead } from "./opening.js";
import { element, troubleLine } from "./text.js";

/**
 * Draw the table of the names, and that of the heads, as soon as they are scrolled into view.
 * @returns {() => void} what takes them away
 */
export function drawNamedHeads(box, found) {
  const [trouble, refuse] = troubleLine();
  const place = element("div", {}, element("p", { class: "note" }, "…")); // something to be seen
  box.append(trouble, place);
  let removed = false;
  const load = latest(async (signal) => {
    place.replaceChildren(element("p", { class: "note" }, "Computing scores…"));
    const { answer } = await headNames();
    const text = await ask("text_scores", { passage: found.asked }, signal);
    if (removed) return;
    place.replaceChildren(...(answer.layers.length ? drawn(answer, text) : [element("p", { class: "note" }, "This model has no self-attention whose heads could be named, or no room for a text that repeats.")]));
  }, (message) => {
    refuse(message);
    if (message) place.replaceChildren();
  });
  const forget = whenSeen(place, load);
  return () => {
    removed = true;
    forget();
  };
}

function drawn(answer, text) {
  const heads = answer.layers.flatMap((layer) => layer.heads.map((head, at) => ({ ...head, at, layer, ofText: scoresIn(text, layer.name, at) })));
  const named = heads.filter(({ names }) => names.length);
  const table = element("table", { class: "scores", id: "named-heads" });
  const show = (shown) => table.replaceChildren(
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "head"), element("th", { scope: "col" }, "named"), ...answer.kinds.map(({ name }) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...shown.map((head) => rowOf(head, answer.kinds))),
  );
  const all = element("button", { type: "button", id: "named-heads-all", "aria-pressed": "false", hidden: !named.length || named.length === heads.length }, `Show all ${heads.length} heads`);
  all.addEventListener("click", () => {
    const isAll = all.getAttribute("aria-pressed") !== "true";
    all.setAttribute("aria-pressed", String(isAll));
    show(isAll ? heads : named);
  });
  show(named.length ? named : heads);
  const count = named.length ? `${named.length} of ${heads.length} heads ${named.length === 1 ? "has" : "have"} a name.` : `None of the ${heads.length} heads has a name: no score reaches its threshold.`;
  return [
    definitions(answer),
    element("p", { class: "readout", id: "named-heads-count", role: "status" }, `${count} The first number of a cell is the score on ${answer.texts} texts of ${answer.tokens} random tokens that are repeated, which gives the names; the second is that on your text.`),
    element("div", { class: "wide-table" }, table),
    all,
  ];
}

function scoresIn(text, name, at) {
  return text.layers.find((layer) => layer.name === name)?.heads[at];
}

/** The names, what their scores are, and from which on they are given. */
function definitions({ kinds }) {
  const rows = kinds.map(({ name, short, lens_name: lens, threshold, definition }) => element("tr", {},
    element("th", { scope: "row" }, `${name} (${short})`),
    element("td", {}, `${definition}${lens ? `; in TransformerLens: ${lens}` : ""}`),
    element("td", { class: "number" }, `≥ ${threshold}`),
  ));
  const head = element("tr", {}, ...["name", "score: the mean, over the tokens, of…", "named at"].map((title) => element("th", { scope: "col" }, title)));
  return element("div", { class: "wide-table" }, element("table", { class: "scores definitions" }, element("thead", {}, head), element("tbody", {}, ...rows)));
}

function rowOf(head, kinds) {
  const button = element("button", { type: "button", title: "look at it in Attention", onclick: () => openHead(head.layer.name, head.at) }, `${labelOf(head.layer)}, head ${head.at + 1}`);
  const cells = kinds.map(({ name, threshold }, i) => {
    const score = head.scores[i];
    const where = name === "positional" && score !== null ? ` (${distance(head.distance)})` : "";
    return element("td", { class: score >= threshold && score !== null ? "number reached" : "number" }, `${two(score)} | ${two(head.ofText?.scores[i])}${where}`);
  });
  return element("tr", {}, element("th", { scope: "row" }, button), element("td", {}, head.names.join(", ")), ...cells);
}

function two(score) {
  return score === null || score === undefined ? "–" : score.toFixed(2);
}

/** The embeddings of the vocabulary as points on a canvas that can be moved and enlarged, with a search. */

import { ask, latest } from "./api.js";
import { page, whenSeen } from "./state.js";
import { counted, element, number, percent, troubleLine, visible } from "./text.js";
import { Scatter } from "./scatter.js";

const MOST_LISTED = 50;
let current = null; // the map that is shown

/**
 * Draw the map of a model's embeddings as soon as it is scrolled into view.
 * @returns {() => void} what takes it away
 */
export function drawEmbeddings(box, { model, facts }) {
  const drawn = { model, remove: () => {}, light: () => {} };
  const [trouble, refuse] = troubleLine();
  const place = element("div");
  const controller = new AbortController();
  const load = latest(async (_, source) => {
    place.replaceChildren(element("p", { class: "note" }, "The principal components are being computed…"));
    const answer = await ask("embeddings", { model, source }, controller.signal);
    drawn.remove();
    Object.assign(drawn, embeddingMap(place, answer, source));
  }, (message) => {
    refuse(message);
    if (message) place.replaceChildren();
  });
  if (facts.kind === "translation" && !facts.settings.share_embeddings) box.append(sideChoice((source) => load(source)));
  box.append(trouble, place);
  const forget = whenSeen(place, () => load(false));
  place.append(element("p", { class: "note" }, "…")); // something to be seen
  current = drawn;
  const remove = () => {
    forget();
    controller.abort();
    drawn.remove();
  };
  const again = latest(async () => {
    if (drawn.move) drawn.move(await ask("embeddings", { model, source: drawn.source }, controller.signal));
  }, refuse);
  return Object.assign(remove, { again });
}

/** Mark the tokens of a passage on the map that is shown. */
export function lightPassage() {
  current?.light();
}

function sideChoice(chosen) {
  const select = element("select", { id: "embeddings-side" }, new Option("that are written", ""), new Option("that are read", "source"));
  select.addEventListener("change", () => chosen(Boolean(select.value)));
  return element("div", { class: "controls" }, element("label", {}, "Tokens", select));
}

/** The map, its search and its lists, in a place. */
function embeddingMap(place, answer, source) {
  let points = coordinatesOf(answer.coordinates);
  const shown = answer.texts.map(visible);
  const tell = (id) => `“${shown[id]}” (id ${id}): ${number(points[2 * id])}, ${number(points[2 * id + 1])}`;
  const explained = element("p", { id: "embeddings-explained" });
  const holder = element("div");
  const search = element("input", { type: "search", id: "embeddings-search", autocomplete: "off", spellcheck: false });
  const count = element("p", { class: "note", id: "embeddings-count", role: "status" });
  const list = element("ul", { class: "found", id: "embeddings-found", "aria-label": "The tokens that were found. Enter shows one on the map." });
  place.replaceChildren(
    explained,
    element("div", { class: "controls" }, element("label", {}, "Search a token", search)),
    holder,
    count,
    list,
  );
  const lines = [];
  const [left, right, bottom, top] = answer.extent;
  const bounds = answer.step === null ? null : { left, right, bottom, top };
  const explain = (found) => {
    const [across, up] = found.explained.map(percent);
    const fixed = found.step === null ? "" : ` The axes are those of the snapshot of step ${found.step.toLocaleString("en")}, so that the points of all steps can be compared.`;
    explained.textContent = `Of the variance of the ${counted(shown.length, "embedding")} of ${counted(found.width, "number")}, ${across} lies along the axis to the right and ${up} along the axis upwards.${fixed}`;
    lines[0] = `Axes: the first two principal components${fixed && ` at step ${found.step.toLocaleString("en")}`}, → ${across} and ↑ ${up} of the variance`;
  };
  explain(answer);
  const scatter = new Scatter(holder, { points, names: shown, tell, lines, note: "○ the tokens of the text · ● those that were found", bounds, label: "The embeddings of the vocabulary" });
  const light = () => {
    const passage = page.passage;
    const ids = passage ? [...new Set(source ? passage.source : passage.ids)].filter((id) => id < shown.length) : [];
    const wanted = search.value;
    const found = wanted ? matches(answer.texts, shown, wanted) : ids;
    scatter.light(ids, wanted ? found : []);
    const items = found.slice(0, MOST_LISTED).map((id) => {
      const button = element("button", { type: "button" }, tell(id));
      button.addEventListener("click", () => scatter.goTo(id));
      return element("li", {}, button);
    });
    const rest = found.length - items.length;
    const said = wanted ? counted(found.length, "token matches", "tokens match") : `Tokens of the text: ${found.length}`;
    const line = `${said}${rest > 0 ? `; here are the first ${MOST_LISTED}` : ""}`;
    if (count.textContent !== line) count.textContent = line;
    list.replaceChildren(...items);
  };
  search.addEventListener("input", light);
  light();
  const move = (found) => {
    points = coordinatesOf(found.coordinates);
    explain(found);
    scatter.take(points);
    light();
  };
  return { light, move, source, remove: () => scatter.remove() };
}

/** The ids of the tokens with these letters in them, equal ones first. Small and capital letters count as the same. */
function matches(texts, shown, wanted) {
  const small = wanted.toLowerCase();
  const found = [];
  for (let id = 0; id < texts.length; id++) {
    if (texts[id].toLowerCase().includes(small) || shown[id] === wanted) found.push(id);
  }
  const isEqual = (id) => (texts[id] === wanted || shown[id] === wanted ? 0 : texts[id].trim().toLowerCase() === small.trim() ? 1 : 2);
  return found.sort((a, b) => isEqual(a) - isEqual(b) || a - b);
}

/** The float32 numbers, little-endian, that are in base64. */
export function coordinatesOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, i) => view.getFloat32(4 * i, true));
}

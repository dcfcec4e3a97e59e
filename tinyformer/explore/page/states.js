/** The state of a recurrent network over time. */

import { ask } from "./api.js";
import { element, number, placed, visible } from "./text.js";
import { tiledMap } from "./tiledmap.js";

const [TALL, WIDE] = [64, 64]; // units and tokens of a question

/**
 * Draw the states, with a choice of the layer and of the kind.
 * @returns {(() => void)|string} what takes them away, or why there are none
 */
export function drawStates(box, found) {
  if (!found.states.length) return "";
  const layer = element("select", { id: "states-layer" });
  const kind = element("select", { id: "states-kind" });
  kind.append(...found.states.map(({ name }) => new Option(name.replace(".", ", "), name)));
  kind.value = found.states.find(({ name }) => !name.startsWith("encoder")).name;
  layer.append(...Array.from({ length: found.states[0].layers }, (_, i) => new Option(`${i + 1}`, i)));
  const place = element("div");
  box.append(element("div", { class: "controls" }, element("label", {}, "State", kind), element("label", {}, "Layer", layer)), place);
  let shown = null;
  const draw = () => {
    shown?.remove();
    shown = drawOne(place, found, found.states.find(({ name }) => name === kind.value), Number(layer.value));
  };
  layer.addEventListener("change", draw);
  kind.addEventListener("change", draw);
  draw();
  return () => shown.remove();
}

function drawOne(place, found, state, layer) {
  const rows = Array.from({ length: state.units }, (_, i) => unitName(state, i));
  const isSource = state.name.startsWith("encoder");
  const texts = (isSource ? sourceOrder(found.passage.sourceTexts, state) : found.texts).map(visible);
  const largest = state.largest[layer] || 1;
  return tiledMap(place, {
    label: `Layer ${layer + 1}: state ${state.name}`,
    axes: { rows: "the unit of the state", columns: "the token that was read" },
    legend: [[-1, number(-largest)], [-0.5, number(-largest / 2)], [0, "0"], [0.5, number(largest / 2)], [1, number(largest)]],
    rows,
    columns: texts,
    tall: TALL,
    wide: WIDE,
    cell: 13,
    width: 20,
    scale: (value) => value / largest,
    tell: (row, column, value) => `${rows[row]} after ${placed(texts[column], column + (isSource ? 0 : found.first))}: ${number(value)}`,
    load: async (signal, { row, rows: units, column, columns }) => {
      const asked = { passage: found.asked, kind: state.name, layer, first: column, count: columns, first_unit: row, units };
      return (await ask("hidden_states", asked, signal)).values;
    },
  });
}

/** Of a network that reads in both directions, the units of each stand together. */
function unitName({ units, directions }, unit) {
  const each = units / directions;
  return `${directions > 1 ? (unit < each ? "forward " : "backward ") : ""}unit ${(unit % each) + 1}`;
}

/** The tokens as the encoder reads them. One that reads from the end leaves the last token, the end of the text, where it is. */
function sourceOrder(texts, state) {
  return state.reversed ? [...texts.slice(0, -1).reverse(), texts.at(-1)] : texts;
}

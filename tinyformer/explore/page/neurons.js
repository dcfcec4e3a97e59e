/** What a neuron does: the tokens that excite it, and those whose logits it raises and lowers. */

import { ask, latest, stream } from "./api.js";
import { takeWanted } from "./opening.js";
import { page, whenSeen } from "./state.js";
import { element, placed, signed, troubleLine, visible } from "./text.js";
import { TokenButtons } from "./tokens.js";

const SMALL = 2e7; // parameters of a model that is searched without being asked to

/**
 * Draw the tokens to choose from, the most active neurons of the chosen one, and what the chosen neuron does.
 * @returns {(() => void)|string} what takes them away, or why there are none
 */
export function drawNeurons(box, found) {
  if (found.states.length) return "A recurrent network has no feed-forward networks. Its units are its state, which is shown below.";
  if (found.stacks.length > 1) return "Neurons are shown of models that read one text, not of an encoder-decoder.";
  const { place = found.count - 1 } = takeWanted("neurons");
  const state = { place: Math.min(place, found.count - 1), units: [], layer: 0, unit: 0, removed: false };
  const [trouble, refused] = troubleLine();
  const tokens = new TokenButtons(box, "The text. The neurons of the chosen token are looked at", (place) => {
    state.place = place;
    active();
  });
  tokens.set(found.texts.map((text) => ({ text })));
  tokens.reach(state.place);
  const offered = element("div", { class: "found", id: "neurons-active", role: "group" });
  const [layer, unit, sign] = [
    element("input", { type: "number", id: "neurons-layer", min: 1, step: 1, required: true }),
    element("input", { type: "number", id: "neurons-unit", min: 1, step: 1, required: true }),
    element("select", { id: "neurons-sign" }, new Option("the largest", ""), new Option("the most negative", "smallest")),
  ];
  const start = element("button", { type: "button", id: "neurons-search", onclick: () => run(true) }, "Search the data");
  const title = element("h3", { id: "neurons-title" });
  const moves = element("div", { class: "neuron-tokens", id: "neurons-tokens" });
  const progress = element("p", { class: "readout", id: "neurons-progress", role: "status" });
  const examples = element("ol", { class: "examples", id: "neurons-examples" });
  const controls = element("div", { class: "controls" }, element("label", {}, "Layer", layer), element("label", {}, "Neuron", unit), element("label", {}, "Activations", sign), start);
  box.append(trouble, offered, controls, title, moves, progress, examples);
  for (const input of [layer, unit]) {
    input.addEventListener("input", () => {
      unit.max = state.units[layer.value - 1] ?? 1;
      for (const one of [layer, unit]) one.setAttribute("aria-invalid", String(!one.checkValidity()));
      if (layer.checkValidity() && unit.checkValidity()) choose(layer.value - 1, unit.value - 1, Boolean(sign.value));
    });
  }
  sign.addEventListener("change", () => choose(state.layer, state.unit, Boolean(sign.value)));

  const active = latest(async (signal) => {
    tokens.light(state.place);
    const { units, best } = await ask("neurons", { passage: found.asked, place: state.place }, signal);
    if (state.removed) return;
    state.units = units;
    layer.max = units.length;
    const token = placed(found.texts[state.place], state.place + found.first);
    offered.setAttribute("aria-label", `The neurons that write most at ${token}`);
    offered.replaceChildren(element("span", { class: "note" }, `Most active at ${token}:`), ...best.map((one) => element("button", {
      type: "button", onclick: () => choose(one.layer, one.unit, one.activation < 0),
    }, `layer ${one.layer + 1}, neuron ${one.unit + 1}: ${signed(one.activation)}`)));
    choose(best[0].layer, best[0].unit, best[0].activation < 0);
  }, refused);

  /** Look at a neuron, and at its largest activations or its smallest ones. */
  function choose(chosenLayer, chosenUnit, smallest) {
    Object.assign(state, { layer: chosenLayer, unit: chosenUnit });
    [layer.value, unit.value, unit.max, sign.value] = [chosenLayer + 1, chosenUnit + 1, state.units[chosenLayer], smallest ? "smallest" : ""];
    title.textContent = `Layer ${chosenLayer + 1}, neuron ${chosenUnit + 1}`;
    examples.replaceChildren();
    progress.textContent = "";
    describe();
    run(found.facts.parameters <= SMALL);
  }

  const describe = latest(async (signal) => {
    const { raised, lowered, why } = await ask("neuron_tokens", { model: found.asked.model, layer: state.layer, unit: state.unit }, signal);
    if (state.removed) return;
    moves.replaceChildren(...(why ? [element("p", { class: "note" }, why)] : [listOf("Raises the logits of", raised), listOf("Lowers the logits of", lowered)]));
  }, refused);

  const run = latest(async (signal, wanted) => {
    if (!wanted) return; // it was only to give up on the search before
    const asked = { passage: found.asked, layer: state.layer, unit: state.unit, smallest: Boolean(sign.value) };
    progress.textContent = "The data are being searched…";
    let last = null;
    for await (const line of stream("neuron_examples", asked, signal)) {
      if (state.removed) return;
      last = line;
      tellProgress(line, false);
    }
    if (last) tellProgress(last, true);
  }, refused);

  function tellProgress({ text, done, tokens: all, best }, ended) {
    const where = text ? `the last tenth of the run's text, ${text}` : "your text, as the run's own cannot be read here";
    const goes = done < all ? (ended ? ". The time for a search is over." : "…") : ".";
    progress.textContent = `${done.toLocaleString("en")} of ${all.toLocaleString("en")} tokens searched, of ${where}${goes}`;
    examples.replaceChildren(...best.map((one) => element("li", {},
      element("span", { class: "number" }, signed(one.value)),
      element("span", { class: "text" }, inLine(one.before), element("mark", {}, visible(one.token)), inLine(one.after)),
    )));
  }

  const forget = whenSeen(tokens.box, active);
  const remove = () => {
    state.removed = true;
    forget();
    run(false);
  };
  return Object.assign(remove, {
    take: ({ place: at }) => {
      state.place = at;
      active();
    },
  });
}

/** Tokens with what one unit of activation adds to their logits. */
function listOf(title, tokens) {
  const items = tokens.map(({ text, value }) => element("li", {}, element("span", { class: "token" }, visible(text)), element("span", { class: "number" }, signed(value))));
  return element("section", { "aria-label": title }, element("h4", {}, title), element("ul", {}, ...items));
}

/** Tokens in one line, or nothing where there are none. */
function inLine(texts) {
  const text = texts.join("");
  return text && visible(text);
}

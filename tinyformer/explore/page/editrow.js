/** A row of attention that is changed by hand: where a token looks in one head, and what the model then predicts. */

import { ask, latest, newest } from "./api.js";
import { element, placed, troubleLine } from "./text.js";
import { saveSvg } from "./save.js";
import { Changes } from "./changes.js";

const MOST = 24; // keys that have a slider, unless all are wanted
const MOST_IN_ADDRESS = 100; // weights of a row that is a part of the address

/** The choice of a row, a slider for each token that is looked at, and the predictions. Event "change": another row, or weights. */
export class RowEditor extends EventTarget {
  /**
   * @param {HTMLElement} parent gets it
   */
  constructor(parent) {
    super();
    this.sliders = []; // {i, input, told, name} of each key that has one
    const look = () => {
      this.look({ layer: this.layer.value, head: Number(this.head.value), query: Number(this.query.value) });
      this.tellChange();
    };
    this.layer = element("select", { "aria-label": "Layer", onchange: look });
    this.head = element("select", { "aria-label": "Head", onchange: look });
    this.query = element("select", { "aria-label": "Query", onchange: look });
    const reset = element("button", { type: "button", onclick: look }, "Reset");
    this.even = element("button", { type: "button", onclick: () => this.spread() }, "Uniform");
    this.all = element("button", { type: "button", hidden: true, onclick: () => this.draw(true) });
    this.keys = element("div", { class: "row-keys", role: "group", "aria-label": "Where the token looks" });
    const [trouble, refuse] = troubleLine();
    const right = element("div", {});
    this.changes = new Changes(right, () => `where ${this.rowName()} looks elsewhere`);
    const name = (text, field) => element("label", {}, `${text} `, field);
    const save = saveSvg(() => `Where ${this.rowName()} looks`, () => [this.keys]);
    parent.append(
      element("div", { class: "controls" }, name("Layer", this.layer), name("Head", this.head), name("Query", this.query), this.even, reset),
      trouble, element("div", { class: "side" }, element("div", {}, this.keys, this.all, save), right));
    this.load = latest((signal, row) => this.fetch(signal, row), refuse);
    this.predict = newest(async (asked) => {
      const found = await ask("edited", asked);
      if (asked.passage === this.passage) this.changes.show(found, this.titleOf(found)); // otherwise another text was taken over
    }, (message) => this.changes.refuse(message));
  }

  /**
   * Take over a passage.
   * @param {object[]} layers {name, label, heads, queries, keys}: the last two are texts of tokens
   * @param {object} current {asked, titleOf}: the passage as questions take it, and what the predictions of an answer are of
   * @param {object} [wanted] what an address says
   */
  prepare(layers, { asked: passage, titleOf }, wanted = {}) {
    const before = { layer: this.layer.value, head: Number(this.head.value), query: NaN };
    Object.assign(this, { layers, passage, titleOf });
    this.layer.replaceChildren(...layers.map(({ name, label }) => new Option(label, name)));
    this.follow(wanted, before);
  }

  /** Show the row that an address names, with its weights. Where it names none, or one that is not there, show another. */
  follow({ layer, head, token, row }, { layer: ownLayer, head: ownHead, query: ownQuery } = {}) {
    this.look({ layer: layer ?? ownLayer, head: head ? head - 1 : ownHead, query: token ? token - 1 : ownQuery }, row);
  }

  /** Which row is shown, and its weights if they were changed, as an address says it. */
  told() {
    return { layer: this.layer.value, head: Number(this.head.value) + 1, token: Number(this.query.value) + 1, row: this.row };
  }

  /** Look at a row, with its own weights or with those of an address. */
  look({ layer, head, query }, row = null) {
    if (this.layers.some(({ name }) => name === layer)) this.layer.value = layer;
    const { heads, queries } = this.current();
    this.head.replaceChildren(...Array.from({ length: heads }, (_, i) => new Option(String(i + 1), String(i))));
    this.query.replaceChildren(...queries.map((text, i) => new Option(placed(text, i), String(i))));
    this.head.value = head in this.head.options ? head : 0;
    this.query.value = query in queries ? query : queries.length - 1;
    this.name(this.names);
    this.row = row;
    this.wait(true);
    this.load(row);
  }

  /** Whether another row is asked for. Until it is there, the weights that are shown can not be moved. */
  wait(is) {
    for (const { input } of this.sliders) input.disabled = is;
    this.even.disabled = is;
  }

  /** The layer that is chosen. */
  current() {
    return this.layers.find(({ name }) => name === this.layer.value);
  }

  /** Write in the choice of a head what the heads are called. */
  name(names) {
    this.names = names;
    for (const option of this.head.options) option.text = `${Number(option.value) + 1}${names?.ending(this.layer.value, option.value) ?? ""}`;
  }

  rowName() {
    return `${this.query.selectedOptions[0]?.text} in ${this.layer.selectedOptions[0]?.text}, head ${this.head.selectedOptions[0]?.text}`;
  }

  tellChange() {
    this.dispatchEvent(new Event("change"));
  }

  asked() {
    return { passage: this.passage, layer: this.layer.value, head: Number(this.head.value) };
  }

  async fetch(signal, row) {
    const query = Number(this.query.value);
    const { weights } = await ask("attention_rows", { ...this.asked(), first: query, count: 1 }, signal);
    [this.weights] = weights;
    this.free = this.weights.flatMap((weight, i) => (weight > 0 ? [i] : [])); // those that the token can see
    this.shown = [...this.free].sort((a, b) => this.weights[b] - this.weights[a]).slice(0, MOST).sort((a, b) => a - b);
    const changed = row && weightsOf(row, this.weights);
    if (changed) this.weights = changed;
    else if (row) {
      this.row = null;
      this.tellChange();
    }
    this.draw(false);
    this.wait(false);
    this.send();
  }

  /** Sliders for the tokens that are looked at most, or for all. */
  draw(all) {
    const { keys } = this.current();
    if (all) this.shown = this.free;
    this.sliders = this.shown.map((i) => {
      const input = element("input", { type: "range", min: 0, max: 1, step: "any", "aria-label": `Weight of ${placed(keys[i], i)}` });
      input.addEventListener("input", () => this.change(i, Number(input.value)));
      input.addEventListener("keydown", (event) => this.step(event, i)); // with step "any" the arrow keys do too little
      return { i, input, told: element("span", { class: "number" }), name: element("span", { class: "name" }, placed(keys[i], i)) };
    });
    this.keys.replaceChildren(...this.sliders.flatMap(({ input, told, name }) => [name, input, told]));
    this.all.hidden = this.shown.length === this.free.length;
    this.all.textContent = `Show all ${this.free.length} tokens`;
    this.tell();
  }

  step(event, i) {
    const by = { ArrowUp: 0.05, ArrowRight: 0.05, ArrowDown: -0.05, ArrowLeft: -0.05 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.change(i, Math.max(0, Math.min(1, this.weights[i] + by)));
  }

  /** Give a token this weight. The others share the rest as before, or alike where they had none. */
  change(key, weight) {
    const others = this.free.filter((i) => i !== key);
    const rest = others.reduce((sum, i) => sum + this.weights[i], 0);
    for (const i of others) this.weights[i] = rest > 0 ? (this.weights[i] * (1 - weight)) / rest : (1 - weight) / others.length;
    this.weights[key] = others.length ? weight : 1;
    this.changed();
  }

  spread() {
    for (const i of this.free) this.weights[i] = 1 / this.free.length;
    this.changed();
  }

  changed() {
    this.tell();
    this.send();
    this.row = this.weights.length <= MOST_IN_ADDRESS ? this.weights.map((weight) => Number(weight.toFixed(3))).join(" ") : null;
    this.tellChange();
  }

  tell() {
    for (const { i, input, told } of this.sliders) {
      input.value = this.weights[i];
      told.textContent = this.weights[i].toFixed(3);
      input.setAttribute("aria-valuetext", told.textContent);
    }
  }

  send() {
    this.predict({ ...this.asked(), query: Number(this.query.value), weights: [...this.weights] });
  }
}

/** The weights that an address holds; null where they cannot be those of this row. They were rounded, so they are made to sum to 1. */
function weightsOf(row, own) {
  const found = row.split(" ").map(Number);
  const sum = found.reduce((all, weight) => all + weight, 0);
  const fits = found.length === own.length && found.every((weight, i) => weight >= 0 && (!weight || own[i] > 0)) && sum > 0 && sum < Infinity;
  return fits ? found.map((weight) => weight / sum) : null;
}

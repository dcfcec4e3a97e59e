/** A row of attention that is changed by hand: where a token looks in one head, and what the model then predicts. */

import { ask, latest } from "./api.js";
import { element, visible } from "./text.js";
import { newest } from "./newest.js";
import { Changes } from "./changes.js";

const MOST = 24; // keys that have a slider, unless all are wanted

/** The choice of a row, a slider for each token that is looked at, and the predictions. */
export class RowEditor {
  /**
   * @param {HTMLElement} parent gets it
   * @param {(found: object) => string} titleOf what the predictions of an answer are of
   */
  constructor(parent, titleOf) {
    this.layer = element("select", { "aria-label": "Layer", onchange: () => this.choose(true) });
    this.head = element("select", { "aria-label": "Head", onchange: () => this.load() });
    this.query = element("select", { "aria-label": "Token that looks", onchange: () => this.load() });
    this.reset = element("button", { type: "button", onclick: () => this.load() }, "As it was");
    this.even = element("button", { type: "button", onclick: () => this.spread() }, "All alike");
    this.all = element("button", { type: "button", onclick: () => this.draw(true) });
    this.keys = element("div", { class: "row-keys", role: "group", "aria-label": "Where the token looks" });
    this.trouble = element("p", { class: "trouble", role: "alert", hidden: true });
    const right = element("div", {});
    this.changes = new Changes(right);
    const name = (text, field) => element("label", {}, `${text} `, field);
    parent.append(
      element("div", { class: "controls" }, name("Layer", this.layer), name("Head", this.head), name("Token that looks", this.query), this.even, this.reset),
      this.trouble, element("div", { class: "side" }, element("div", {}, this.keys, this.all), right));
    this.load = latest((signal) => this.fetch(signal), (message) => this.refuse(message));
    this.predict = newest(async (asked) => {
      const found = await ask("edited", asked);
      this.changes.show(found, titleOf(found));
    }, (message) => this.changes.refuse(message));
  }

  /**
   * Take over a passage.
   * @param {object[]} layers {name, label, heads, queries, keys}: the last two are texts of tokens
   * @param {object} passage as questions take it
   */
  prepare(layers, passage) {
    const before = this.layer.value;
    Object.assign(this, { layers, passage });
    this.layer.replaceChildren(...layers.map(({ name, label }) => new Option(label, name)));
    if (layers.some(({ name }) => name === before)) this.layer.value = before;
    this.choose(false);
  }

  /** Take over the layer that is chosen. The head and the token stay where there are such. */
  choose(keep) {
    const { heads, queries } = this.layers.find(({ name }) => name === this.layer.value);
    const [head, query] = [this.head.value, this.query.value];
    this.head.replaceChildren(...Array.from({ length: heads }, (_, i) => new Option(String(i + 1), String(i))));
    this.query.replaceChildren(...queries.map((text, i) => new Option(named(text, i), String(i))));
    this.head.value = Number(head) < heads ? head || "0" : "0";
    this.query.value = keep && Number(query) < queries.length ? query : String(queries.length - 1);
    this.load();
  }

  asked() {
    return { passage: this.passage, layer: this.layer.value, head: Number(this.head.value) };
  }

  async fetch(signal) {
    const query = Number(this.query.value);
    const { weights } = await ask("attention_rows", { ...this.asked(), first: query, count: 1 }, signal);
    [this.weights] = weights;
    this.free = this.weights.flatMap((weight, i) => (weight > 0 ? [i] : [])); // those that the token can see
    this.shown = [...this.free].sort((a, b) => this.weights[b] - this.weights[a]).slice(0, MOST).sort((a, b) => a - b);
    this.draw(false);
    this.send();
  }

  /** Sliders for the tokens that are looked at most, or for all. */
  draw(all) {
    const { keys } = this.layers.find(({ name }) => name === this.layer.value);
    if (all) this.shown = this.free;
    this.sliders = this.shown.map((i) => {
      const input = element("input", { type: "range", min: 0, max: 1, step: "any", "aria-label": `Weight of ${named(keys[i], i)}` });
      input.addEventListener("input", () => this.change(i, Number(input.value)));
      input.addEventListener("keydown", (event) => this.step(event, i)); // with step "any" the arrow keys do too little
      return { i, input, told: element("span", { class: "number" }), name: element("span", { class: "name" }, named(keys[i], i)) };
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
    this.tell();
    this.send();
  }

  spread() {
    for (const i of this.free) this.weights[i] = 1 / this.free.length;
    this.tell();
    this.send();
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

  refuse(message) {
    this.trouble.textContent = message;
    this.trouble.hidden = !message;
  }
}

/** A token with its place, from 1 on. */
function named(text, i) {
  return `“${visible(text)}” (place ${i + 1})`;
}

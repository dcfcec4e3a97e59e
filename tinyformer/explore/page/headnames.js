/** What the heads of the model are called, for all views that show heads: see the question "head_names". */

import { ask } from "./api.js";
import { page } from "./state.js";
import { element } from "./text.js";

const asked = new WeakMap(); // of each model's facts: a promise of its names

/**
 * The names of the heads of the model that is chosen. They are computed once a model, which takes a pass over 400 tokens.
 * @returns {Promise<HeadNames>}
 */
export function headNames() {
  const { model, facts } = page;
  if (!asked.has(facts)) {
    const coming = ask("head_names", { model }).then((answer) => new HeadNames(answer));
    coming.catch(() => asked.delete(facts)); // it may be asked again
    asked.set(facts, coming);
  }
  return asked.get(facts);
}

/** The names of a model's heads. */
export class HeadNames {
  constructor(answer) {
    this.answer = answer;
    this.layers = new Map(answer.layers.map((layer) => [layer.name, layer.heads]));
    this.kinds = new Map(answer.kinds.map((kind) => [kind.name, kind]));
  }

  /**
   * What a head is called: {short, long}, such as "prev" and "previous token, positional (1 before)"; null without a name.
   * @param {string} layer its name, as the question "attention" has it
   * @param {number} head from 0 on
   */
  of(layer, head) {
    const found = this.layers.get(layer)?.[head];
    if (!found?.names.length) return null;
    return {
      short: this.kinds.get(found.names[0]).short,
      long: found.names.map((name) => (name === "positional" ? `positional (${distance(found.distance)})` : name)).join(", "),
    };
  }

  /** The same as an ending of a title: " · induction", or "". */
  ending(layer, head) {
    const found = this.of(layer, head);
    return found ? ` · ${found.long}` : "";
  }

  /**
   * Write in the button of a head what it is called: the short name below what stands there, and the long one in its title.
   * @param {HTMLButtonElement} button
   * @param {string} layer
   * @param {number} head
   * @param {string} label the head by its number, such as "layer 1, head 2"
   * @param {string} act what the button does to the head, such as "Switch off "; "" where it only chooses it
   */
  mark(button, layer, head, label, act = "") {
    button.querySelector(".named")?.remove();
    const found = this.of(layer, head);
    if (found) button.append(element("span", { class: "named", "aria-hidden": "true" }, found.short));
    button.title = label + this.ending(layer, head);
    button.setAttribute("aria-label", act + button.title);
  }
}

/** A distance in words: "3 before", "1 behind", "itself". */
export function distance(places) {
  return places ? `${Math.abs(places)} ${places > 0 ? "before" : "behind"}` : "itself";
}

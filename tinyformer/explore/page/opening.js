/** Ways from a part of the model to the view that shows it. */

import { page } from "./state.js";

/**
 * Show a head in the view "attention".
 * @param {string} name of its layer, as the question "attention" has it
 * @param {number} head from 0 on
 * @param {number|null} [query] the token whose weights are looked at; null: the one that was chosen there
 */
export function openHead(name, head, query = null) {
  open("attention", "head", query === null ? { name, head } : { name, head, query });
}

/** Show the value of a unit of the residual stream before a layer, at a token, in the view "numbers"; of large models the logit lens. */
export function openCell(layer, token, unit) {
  if (page.facts.kind === "language" && page.facts.parameters <= 2e6) open("numbers", "cell", { layer, token, unit });
  else openPart("lens");
}

/** Show a part of the view "inside", such as "neurons", with what is chosen there. */
export function openPart(name, detail = {}) {
  open("inside", "part", { name, ...detail });
}

/** Return what ``openPart`` chose in a part, once: the next drawing of the part starts as usual. */
export function takeWanted(name) {
  if (page.wanted?.name !== name) return {};
  const { wanted } = page;
  page.wanted = null;
  return wanted;
}

function open(view, event, detail) {
  const tab = document.getElementById(`tab-${view}`);
  tab.click();
  tab.focus();
  page.dispatchEvent(new CustomEvent(event, { detail }));
}

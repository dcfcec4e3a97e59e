/** A way to a head in the view "attention" from wherever it is named. */

import { page } from "./state.js";

/**
 * Show a head in the view "attention".
 * @param {string} name of its layer, as the question "attention" has it
 * @param {number} head from 0 on
 * @param {number|null} [query] the token whose weights are looked at; null: the one that was chosen there
 */
export function openHead(name, head, query = null) {
  const tab = document.getElementById("tab-attention");
  tab.click();
  tab.focus();
  page.dispatchEvent(new CustomEvent("head", { detail: query === null ? { name, head } : { name, head, query } }));
}

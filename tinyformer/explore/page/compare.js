/** The view "compare". */

import { element } from "./text.js";

let section = null;

/** Fill the section of this view once. */
export function begin(given) {
  section = given;
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  section.replaceChildren(element("p", { class: "note" }, "Nothing yet."));
}

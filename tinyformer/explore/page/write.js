/** The view "write": a text as it is written, as its masks are filled in, or its classes; and beam search. */

import { page } from "./state.js";
import { element } from "./text.js";
import * as beam from "./beam.js";
import * as classes from "./classes.js";
import * as fill from "./fill.js";
import * as writer from "./writer.js";

const parts = {};

/** Fill the section of this view once. */
export function begin(section) {
  for (const name of ["writer", "fill", "beam", "classes"]) parts[name] = element("div", { class: name, hidden: true });
  section.append(...Object.values(parts));
  writer.begin(parts.writer);
  fill.begin(parts.fill);
  beam.begin(parts.beam);
  classes.begin(parts.classes);
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  const kind = page.facts?.kind;
  const writes = kind === "language" || kind === "translation";
  parts.writer.hidden = parts.beam.hidden = !writes;
  parts.fill.hidden = kind !== "masked";
  parts.classes.hidden = kind !== "encoder";
  if (!page.passage) return;
  if (writes) writer.show();
  if (kind === "masked") fill.show();
  if (writes) beam.show();
  if (kind === "encoder") classes.show();
}

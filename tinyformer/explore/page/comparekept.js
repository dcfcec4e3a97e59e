/** What was chosen in the view "compare", which this tab of the browser keeps. */

import { Refusal, ask } from "./api.js";
import { page } from "./state.js";

const KEY = "explorer.compare";
export const kept = { others: {}, length: 200, text: "", source: "", shown: "a" };

/** Take over some of these values. */
export function keep(values) {
  Object.assign(kept, values);
  try {
    sessionStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // The browser keeps nothing, or the text is too long for it: then it is not kept.
  }
}

/** Read what was kept. */
export function restore() {
  try {
    Object.assign(kept, JSON.parse(sessionStorage.getItem(KEY) ?? "{}"));
  } catch {
    sessionStorage.removeItem(KEY);
  }
}

/** The prompt as the ids of a model. Throws Refusal where it cannot read it. */
export async function passageOf(model, signal) {
  const { kind, mask } = await ask("facts", { model }, signal);
  if (kind !== page.facts.kind) throw new Refusal(`${page.model} and ${model} cannot be compared: they are models of different kinds.`);
  const { ids } = await ask("encode", { model, text: page.text }, signal);
  if (kind === "masked" && !ids.includes(mask)) throw new Refusal("The text has no mask, so there are no predictions to compare. Insert one.");
  const source = kind === "translation" ? await ask("encode", { model, text: page.sourceText, source: true }, signal) : { ids: [] };
  return { model, ids, source: source.ids };
}

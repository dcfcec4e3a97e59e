/** The prompt as another model reads it. */

import { Refusal, ask } from "./api.js";
import { page } from "./state.js";

/** The prompt as the ids of a model. Throws Refusal where it cannot read it. */
export async function passageOf(model, signal) {
  const { kind, mask } = await ask("facts", { model }, signal);
  if (kind !== page.facts.kind) throw new Refusal(`${page.model} and ${model} cannot be compared: they are models of different kinds.`);
  const { ids } = await ask("encode", { model, text: page.text }, signal);
  if (kind === "masked" && !ids.includes(mask)) throw new Refusal("There is no mask in the text, so there are no predictions to compare.");
  const source = kind === "translation" ? await ask("encode", { model, text: page.sourceText, source: true }, signal) : { ids: [] };
  return { model, ids, source: source.ids };
}

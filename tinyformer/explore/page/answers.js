/**
 * Answers about the steps of a film: those of the next step are asked for before it is shown, and all are kept, so that a film
 * draws its pictures at once and without a gap.
 */

import { page } from "./state.js";

const MOST = 24e6; // letters and bytes of the answers that are kept
const kept = new Map(); // by question: a promise of the answer, and its size, 0 as long as it has not come
let size = 0; // of the answers that are kept, in letters and bytes
let asked = new Map(); // what was asked about the frame that is shown: the name and the object of each question, and its kind

page.addEventListener("passage", () => (asked = new Map()));
page.addEventListener("weights", forget); // a step may be compared with a model that has new ones

/** What is asked, as JSON, about the weights of a step in the place of the chosen model's own. */
export function asJson(asked, step = page.step) {
  const name = page.nameAt(step);
  return JSON.stringify(asked, (key, value) => (key === "model" && value === page.model ? name : value));
}

/**
 * The answer to a question, which may be known.
 * @param {string} name of the question
 * @param {object} given what it is asked
 * @param {string} kind of its answer: "text", which is JSON, or "arrayBuffer"
 * @param {(body: string, isShared?: boolean) => Promise<string|ArrayBuffer>} fetched asks the server. Whoever asked first may not
 *   give up on one that is shared.
 * @returns {Promise<string|ArrayBuffer>} which is not to be changed
 */
export async function answerTo(name, given, kind, fetched) {
  const body = asJson(given);
  const isOfFilm = page.film.snapshots.length > 0 && body.includes(`"model":${JSON.stringify(page.shown)}`);
  const [own, question, entry] = [asked, `${name} ${JSON.stringify(given)}`, [name, given, kind]];
  if (isOfFilm) own.set(question, entry);
  try {
    return await (isOfFilm && page.step !== null ? keep(`${name} ${body}`, () => fetched(body, true)) : fetched(body));
  } catch (error) {
    if (own.get(question) === entry) own.delete(question); // what is refused at this step is not asked at the next
    throw error;
  }
}

/**
 * Ask at another step what was asked about the frame that is shown. Throws what a question throws.
 * @param {number} step
 * @param {(name: string, body: string, kind: string) => Promise<string|ArrayBuffer>} fetched
 */
export async function askAhead(step, fetched) {
  await Promise.all([...asked.values()].map(([name, given, kind]) => {
    const body = asJson(given, step);
    return keep(`${name} ${body}`, () => fetched(name, body, kind));
  }));
}

/** Forget all answers, as snapshots or checkpoints were written again. */
export function forget() {
  kept.clear();
  size = 0;
}

const sizeOf = (answer) => answer.byteLength ?? answer.length;

async function keep(question, fetched) {
  if (kept.has(question)) return kept.get(question).coming;
  const own = { coming: fetched(), size: 0 };
  kept.set(question, own);
  try {
    const answer = await own.coming;
    if (kept.get(question) === own) makeRoom(own, sizeOf(answer));
    return answer;
  } catch (error) {
    if (kept.get(question) === own) kept.delete(question);
    throw error;
  }
}

/** Count an answer that has come, of so many letters or bytes, and forget the oldest of the others until there is room for it. */
function makeRoom(come, added) {
  come.size = added;
  size += added;
  for (const [question, one] of kept) {
    if (size <= MOST || one === come) return;
    if (!one.size) continue; // it has not come
    kept.delete(question);
    size -= one.size;
  }
}

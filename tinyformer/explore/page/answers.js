/**
 * Answers about the steps of a film: those of the next step are asked for before it is shown, and all are kept, so that a film
 * draws its pictures at once and without a gap.
 */

import { page } from "./state.js";

const MOST = 24e6; // letters of the answers that are kept
const kept = new Map(); // by question: a promise of the answer's JSON
let letters = 0;
let asked = new Map(); // what was asked about the frame that is shown: the name and the object of each question

page.addEventListener("passage", () => (asked = new Map()));

/** What is asked, as JSON, about the weights of a step in the place of the chosen model's own. */
export function asJson(asked, step = page.step) {
  const name = page.nameAt(step);
  return JSON.stringify(asked, (key, value) => (key === "model" && value === page.model ? name : value));
}

/**
 * The answer to a question, which may be known.
 * @param {string} name of the question
 * @param {object} given what it is asked
 * @param {(body: string, isShared?: boolean) => Promise<string>} fetched asks the server, and gives its answer as JSON. Whoever
 *   asked first may not give up on one that is shared.
 * @returns {Promise<object>}
 */
export async function answerTo(name, given, fetched) {
  const body = asJson(given);
  const isOfFilm = page.film.snapshots.length > 0 && body.includes(`"model":${JSON.stringify(page.shown)}`);
  if (isOfFilm) asked.set(`${name} ${JSON.stringify(given)}`, [name, given]);
  if (!isOfFilm || page.step === null) return JSON.parse(await fetched(body));
  return JSON.parse(await keep(`${name} ${body}`, () => fetched(body, true)));
}

/**
 * Ask at another step what was asked about the frame that is shown. Throws what a question throws.
 * @param {number} step
 * @param {(name: string, body: string) => Promise<string>} fetched
 */
export async function askAhead(step, fetched) {
  await Promise.all([...asked.values()].map(([name, given]) => {
    const body = asJson(given, step);
    return keep(`${name} ${body}`, () => fetched(name, body));
  }));
}

/** Forget all answers, as snapshots were written again. */
export function forget() {
  kept.clear();
  letters = 0;
}

async function keep(question, fetched) {
  const known = kept.get(question);
  if (known) return known;
  const coming = fetched();
  kept.set(question, coming);
  try {
    const answer = await coming;
    if (kept.get(question) !== coming) return answer;
    letters += answer.length;
    for (const [old, one] of kept) {
      if (letters <= MOST || old === question) break;
      kept.delete(old);
      one.then((text) => (letters -= text.length), () => {});
    }
    return answer;
  } catch (error) {
    if (kept.get(question) === coming) kept.delete(question);
    throw error;
  }
}

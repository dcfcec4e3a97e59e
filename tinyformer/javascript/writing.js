/** Writing with a GPT: from logits to the next token, and from characters to ids and back. */

const USELESS = "the model's outputs are NaN or infinite: its weights are damaged";

/** How the next token is picked, as tinyformer's Sampling does. */
export class Sampling {
  /**
   * @param {object} [settings]
   * @param {number} [settings.temperature] divides the logits; below 1 is more careful, 0 is greedy
   * @param {number} [settings.topK] only the k likeliest tokens; 0: all
   * @param {number} [settings.topP] then only the fewest tokens whose probabilities together reach p
   * @param {number} [settings.minP] then none that is less than p times as likely as the likeliest
   *   Throws Error for a value that is not allowed.
   */
  constructor({ temperature = 1, topK = 0, topP = 1, minP = 0 } = {}) {
    if (!(Number.isFinite(temperature) && temperature >= 0)) throw new Error(`temperature must be 0 (greedy) or more, got ${temperature}`);
    if (!(Number.isInteger(topK) && topK >= 0)) throw new Error(`topK must be a whole number of 0 or more, got ${topK}`);
    if (!(topP > 0 && topP <= 1)) throw new Error(`topP must be above 0 and at most 1, got ${topP}`);
    if (!(Number.isFinite(minP) && minP >= 0 && minP <= 1)) throw new Error(`minP must be between 0 and 1, got ${minP}`);
    Object.assign(this, { temperature, topK, topP, minP });
  }

  /** The probability with which each token is picked, of logits (vocab_size). Throws Error if the highest is NaN or infinite. */
  probabilities(logits) {
    const order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b); // the first of equal ones first
    const highest = logits[order[0]];
    if (!Number.isFinite(highest) || logits.some(Number.isNaN)) throw new Error(USELESS);
    const weight = (id) => (this.temperature ? Math.exp((logits[id] - highest) / this.temperature) : Number(id === order[0]));
    const weights = Float64Array.from(logits.keys(), weight);
    const kept = this.reaching(order.slice(0, this.topK || order.length), weights).filter((id) => weights[id] >= this.minP);
    const total = kept.reduce((sum, id) => sum + weights[id], 0);
    const found = new Float64Array(logits.length);
    for (const id of kept) found[id] = weights[id] / total;
    return found;
  }

  /** The first tokens whose weights together reach topP of the sum of all. */
  reaching(order, weights) {
    if (this.topP === 1) return order; // rounding could leave tokens out
    const enough = this.topP * order.reduce((sum, id) => sum + weights[id], 0);
    let reached = 0;
    const last = order.findIndex((id) => (reached += weights[id]) >= enough);
    return order.slice(0, last + 1);
  }

  /** One token's id. `random` gives numbers from 0 to below 1, as `seeded` does. */
  pick(logits, random) {
    return pick(this.probabilities(logits), random);
  }
}

/** The id where the cumulative probability passes a random number. */
export function pick(probabilities, random) {
  let left = random();
  let last = 0;
  for (const [id, probability] of probabilities.entries()) {
    if (probability === 0) continue;
    last = id;
    left -= probability;
    if (left < 0) break;
  }
  return last; // also where rounding lets the probabilities sum to a little less than 1
}

/** Random numbers from 0 to below 1, the same ones for the same seed (the generator mulberry32). */
export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/**
 * Reads a text that grows, or that is edited, and computes only what is new.
 *
 * A text longer than block_size does not fit the context. Then the model reads the end of it, which begins at a multiple of
 * `stride`. When it begins anew, all of it is computed anew, as each token's position is another one. With a stride of 1 that is
 * so for each token, and the logits are those of tinyformer's `generate`. A stride of half the context, the default, is much
 * faster: each token is computed twice. But the model then sees only the last half of its context, or more.
 */
export class Reader {
  constructor(model, stride = Math.ceil(model.config.block_size / 2)) {
    const { block_size } = model.config;
    if (!(Number.isInteger(stride) && stride >= 1 && stride <= block_size)) {
      throw new Error(`stride must be 1 to block_size, ${block_size}, got ${stride}`);
    }
    Object.assign(this, { model, stride, cache: model.newCache(), ids: [] });
  }

  /** The logits (vocab_size) of what follows a text of these ids, one or more. Throws Error as the model's `forward` does. */
  logits(text) {
    const excess = text.length - this.model.config.block_size;
    const ids = excess > 0 ? text.slice(Math.ceil(excess / this.stride) * this.stride) : text;
    const different = ids.findIndex((id, place) => id !== this.ids[place]);
    const kept = Math.min(different < 0 ? ids.length : different, ids.length - 1); // the last one's logits are asked for
    this.cache.keep(Math.max(0, kept));
    this.ids = ids.slice(0, this.cache.length); // what the cache holds, if the model refuses the others
    const logits = this.model.forward(ids.slice(this.cache.length), this.cache, { lastOnly: true });
    this.ids = ids.slice();
    return logits;
  }
}

/**
 * Go on with a text: yields the ids of up to `count` tokens, and stops after one of `ends`.
 * @param {Reader} reader
 * @param {number[]} prompt one id or more
 * @param {number} count
 * @param {Sampling} sampling
 * @param {() => number} random
 * @param {number[]} [ends]
 */
export function* write(reader, prompt, count, sampling, random = Math.random, ends = []) {
  const text = [...prompt];
  for (let written = 0; written < count; written++) {
    const id = sampling.pick(reader.logits(text), random);
    text.push(id);
    yield id;
    if (ends.includes(id)) return;
  }
}

/** The characters that are the tokens of a model, as tinyformer's CharTokenizer. */
export class Characters {
  /** @param {object} metadata of a file of weights. Throws Error for those of a model whose tokens are no characters. */
  constructor({ characters }) {
    if (!characters) throw new Error("the tokens of this model are not characters");
    this.texts = JSON.parse(characters);
    this.ids = new Map(this.texts.map((text, id) => [text, id]));
  }

  /** The ids of a text. Characters that the model does not know are left out. */
  encode(text) {
    return [...text].map((character) => this.ids.get(character)).filter((id) => id !== undefined);
  }

  /** The text of ids. */
  decode(ids) {
    return ids.map((id) => this.texts[id]).join("");
  }
}

/** A GPT, whose recorded program computes it: see program.js. */

import { Cache, Program } from "./program.js";

/** A model that predicts the next token. */
export class GPT {
  /**
   * @param {{metadata: object, arrays: Map}} file as readSafetensors gives it, of a file that tinyformer's web_weights wrote.
   *   Throws Error for another file, and as Program does.
   */
  constructor({ metadata, arrays }) {
    if (metadata.format !== "tinyformer.GPT") throw new Error("these are not the weights of a GPT that tinyformer wrote for a page");
    this.config = JSON.parse(metadata.config);
    this.program = new Program(JSON.parse(metadata.program), arrays);
  }

  /**
   * The logits of the token after each one.
   * @param {number[]} ids the tokens; with a cache those that follow the ones in it
   * @param {Cache} [cache] of `newCache`, which then holds the new tokens, too
   * @param {{lastOnly?: boolean, see?: (name: string, shape: number[], values: Float64Array) => void}} [options]
   *   lastOnly: only the logits after the last token; see: as for Program.run
   * @returns {Float64Array} (length, vocab_size), or (1, vocab_size). Throws Error for ids that the model does not know, for
   *   none, and for more than block_size, those in the cache included.
   */
  forward(ids, cache = null, { lastOnly = false, see = null } = {}) {
    this.check(ids, cache);
    const memory = cache ?? this.newCache(ids.length);
    if (!this.program.isCached) memory.ids = [...memory.ids.slice(0, memory.length), ...ids];
    const read = this.program.isCached ? ids : memory.ids;
    const { logits } = this.program.run({ ids: { shape: [1, read.length], values: read } }, { cache: memory, see });
    memory.length += ids.length;
    return logits.values.subarray((read.length - (lastOnly ? 1 : ids.length)) * this.config.vocab_size);
  }

  /** An empty cache for up to so many tokens. */
  newCache(capacity = this.config.block_size) {
    return new Cache(Math.min(capacity, this.config.block_size));
  }

  check(ids, cache) {
    const room = cache ? cache.capacity - cache.length : this.config.block_size;
    if (ids.length === 0) throw new Error("there are no ids: the model reads one or more");
    if (ids.length > room) throw new Error(`there is room for ${room} of these ${ids.length} tokens: leave some out`);
    const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < this.config.vocab_size));
    if (wrong !== undefined) throw new Error(`${wrong} is no token: ids are 0 to ${this.config.vocab_size - 1}`);
  }
}

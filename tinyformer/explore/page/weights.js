/** Attention weights of one head, fetched in blocks of queries as they are needed. */

import { ask, Refusal } from "./api.js";

const NUMBERS = 16384; // of a block, so that it comes soon
const MOST_BLOCKS = 64; // that are kept: as many numbers as a map of 1,024 by 1,024 tokens has

/** The weights of a head, a mean or a rollout: some of them at once, others later. */
export class Weights {
  /**
   * @param {object} asked {passage, layer, head} as the question "attention_rows" takes it
   * @param {number} queries how many rows there are
   * @param {number} keys how many columns there are
   * @param {() => void} arrived is called when more weights are there
   * @param {(message: string) => void} refused is told why none come
   */
  constructor(asked, queries, keys, arrived, refused) {
    Object.assign(this, { asked, queries, arrived, refused });
    this.size = Math.max(1, Math.min(queries, Math.floor(NUMBERS / keys)));
    this.blocks = new Map(); // those that were used last are at the end
    this.wanted = [];
    this.asking = false;
    this.fetching = null; // what is fetched now
    this.controller = new AbortController();
  }

  /** The weights of a query: a number for each key; null if they are not there yet. */
  row(query) {
    return this.blocks.get(Math.floor(query / this.size))?.[query % this.size] ?? null;
  }

  /**
   * Fetch these queries next, and forget what was wanted before.
   * @param {number[]} queries the most urgent first
   */
  want(queries) {
    this.wanted = [...new Set(queries.map((query) => Math.floor(query / this.size)))];
    for (const block of [...this.wanted].reverse()) this.touch(block);
    if (!this.asking) this.fetching = this.fetch();
  }

  /** Fetch all, of a map whose weights may all be kept. */
  async all() {
    const queries = [...Array(this.queries).keys()];
    for (let before = -1; before < this.blocks.size && this.blocks.size * this.size < this.queries;) {
      before = this.blocks.size;
      this.want(queries);
      await this.fetching;
    }
  }

  /** Ask for nothing more. */
  close() {
    this.controller.abort();
  }

  async fetch() {
    this.asking = true;
    try {
      for (let block; (block = this.wanted.find((one) => !this.blocks.has(one))) !== undefined; this.arrived()) {
        const part = { first: block * this.size, count: this.size };
        const { weights } = await ask("attention_rows", { ...this.asked, ...part }, this.controller.signal);
        this.blocks.set(block, weights);
        for (const old of [...this.blocks.keys()].slice(0, this.blocks.size - MOST_BLOCKS)) {
          if (!this.wanted.includes(old)) this.blocks.delete(old);
        }
      }
    } catch (error) {
      // Otherwise the question was given up, or the connection is lost, which the page says.
      if (error instanceof Refusal) this.refused(error.message);
    } finally {
      this.asking = false;
    }
  }

  touch(block) {
    const found = this.blocks.get(block);
    if (!found) return;
    this.blocks.delete(block);
    this.blocks.set(block, found);
  }
}

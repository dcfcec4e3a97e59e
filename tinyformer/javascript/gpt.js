/**
 * The forward pass of a GPT in plain loops. It computes what tinyformer/models/gpt.py does, under the same names.
 *
 * An array (length, d_model) is a Float32Array with a row for each token, one row after the other. Sums are made in float64, as
 * all arithmetic of JavaScript. A function returns a new array unless it says what it changes.
 *
 * `see` is null, or a function (name, shape, values) that is shown each array as soon as it is computed.
 */

import { FUNCTIONS, GATED } from "./functions.js";
import { frequencies, sinusoidal } from "./places.js";
import { multiply } from "./products.js";

/** A model that predicts the next token. */
export class GPT {
  /**
   * @param {{metadata: object, arrays: Map}} file as readSafetensors gives it, of a file that tinyformer's web_weights wrote.
   *   Throws Error if a weight is missing, or of another shape than the settings say.
   */
  constructor({ metadata, arrays }) {
    const config = configOf(metadata);
    const take = taker(arrays);
    const { vocab_size, block_size, num_layers, d_model } = config;
    this.config = config;
    this.tokenEmbedding = take("token_embedding.weight", vocab_size, d_model);
    this.positions = config.positions === "learned" ? take("position_embedding.weight", block_size, d_model) : null;
    if (config.positions === "sinusoidal") this.positions = Float32Array.from(sinusoidal(block_size, d_model));
    const rotary = config.positions === "rotary" ? new Rotary(config) : null;
    this.blocks = Array.from({ length: num_layers }, (_, i) => new Block(take, `blocks.${i}`, config, rotary));
    this.norm = new Norm(take, "norm", config);
    this.output = new Linear(take, config.tie_output ? "token_embedding" : "output", d_model, vocab_size, false);
  }

  /**
   * The logits of the token after each one.
   * @param {number[]} ids the tokens; with a cache those that follow the ones in it
   * @param {Cache} [cache] of `newCache`, which then holds the new tokens, too
   * @param {{lastOnly?: boolean, see?: (name: string, shape: number[], values: Float32Array) => void}} [options]
   *   lastOnly: only the logits after the last token
   * @returns {Float32Array} (length, vocab_size), or (1, vocab_size). Throws Error for ids that the model does not know, for
   *   none, and for more than block_size, those in the cache included.
   */
  forward(ids, cache = null, { lastOnly = false, see = null } = {}) {
    const { vocab_size, d_model } = this.config;
    this.check(ids, cache);
    const memory = cache ?? this.newCache(ids.length);
    let x = this.embed(ids, memory.length, see);
    for (const [i, block] of this.blocks.entries()) x = block.apply(x, memory.length, memory.blocks[i], see);
    memory.length += ids.length;
    if (lastOnly) x = x.subarray(x.length - d_model);
    const normed = this.norm.apply(x, see);
    const logits = this.output.apply(normed);
    see?.("logits", [x.length / d_model, vocab_size], logits);
    return logits;
  }

  /** An empty cache for up to so many tokens. */
  newCache(capacity = this.config.block_size) {
    const { numKeyValueHeads, d_head } = this.config;
    return new Cache(this.blocks.length, Math.min(capacity, this.config.block_size), numKeyValueHeads * d_head);
  }

  check(ids, cache) {
    const room = cache ? cache.capacity - cache.length : this.config.block_size;
    if (ids.length === 0) throw new Error("there are no ids: the model reads one or more");
    if (ids.length > room) throw new Error(`there is room for ${room} of these ${ids.length} tokens: leave some out`);
    const wrong = ids.find((id) => !(Number.isInteger(id) && id >= 0 && id < this.config.vocab_size));
    if (wrong !== undefined) throw new Error(`${wrong} is no token: ids are 0 to ${this.config.vocab_size - 1}`);
  }

  /** What the first block reads, (length, d_model): a vector for each token, and added to it one for its position. */
  embed(ids, start, see) {
    const { d_model, positions } = this.config;
    const scale = positions === "sinusoidal" ? Math.sqrt(d_model) : 1; // else embeddings would be tiny beside sines of size 1
    const x = new Float32Array(ids.length * d_model);
    for (const [place, id] of ids.entries()) {
      for (let i = 0; i < d_model; i++) x[place * d_model + i] = scale * this.tokenEmbedding[id * d_model + i];
    }
    see?.("token_embedding", [ids.length, d_model], x);
    if (!this.positions) return x;
    const added = this.positions.subarray(start * d_model, (start + ids.length) * d_model);
    see?.("position_embedding", [ids.length, d_model], added);
    return sum(x, added);
  }
}

/** The keys and values of all tokens so far, so that each is computed once. */
export class Cache {
  constructor(numBlocks, capacity, width) {
    this.capacity = capacity;
    this.length = 0;
    const make = () => new Float32Array(capacity * width);
    this.blocks = Array.from({ length: numBlocks }, () => ({ keys: make(), values: make() }));
  }

  /** Keep the first tokens, and forget those after them. */
  keep(count) {
    this.length = Math.min(count, this.length);
  }
}

// ------------------------------------------------------------------------------------------------- blocks and layers

/** Attention, then a feed-forward network, each after a norm, and each added to what it read. */
class Block {
  constructor(take, name, config, rotary) {
    this.name = name;
    this.attentionNorm = new Norm(take, `${name}.attention_norm`, config);
    this.attention = new Attention(take, `${name}.attention`, config, rotary);
    this.feedForwardNorm = new Norm(take, `${name}.feed_forward_norm`, config);
    this.feedForward = new FeedForward(take, `${name}.feed_forward`, config);
  }

  /** (length, d_model) -> the same shape. */
  apply(x, start, cache, see) {
    const middle = sum(x, this.attention.apply(this.attentionNorm.apply(x, see), start, cache, see));
    const shape = [x.length / this.attentionNorm.width, this.attentionNorm.width];
    see?.(`${this.name}.after_attention`, shape, middle);
    const result = sum(middle, this.feedForward.apply(this.feedForwardNorm.apply(middle, see), see));
    see?.(this.name, shape, result);
    return result;
  }
}

/** Each token mixes the values of itself and of those before it, by how well their keys fit its query. */
class Attention {
  constructor(take, name, config, rotary) {
    const { d_model, num_heads, numKeyValueHeads, d_head, bias, query_key_value_bias, query_key_norm, sliding_window } = config;
    const widths = { queries: num_heads * d_head, keys: numKeyValueHeads * d_head };
    Object.assign(this, { name, rotary, widths, numHeads: num_heads, keyHeads: numKeyValueHeads, d_head });
    this.window = sliding_window || Infinity;
    const all = widths.queries + 2 * widths.keys;
    this.projection = new Linear(take, `${name}.query_key_value`, d_model, all, bias || query_key_value_bias);
    const norm = (of) => ({ weight: take(`${name}.${of}_norm.weight`, d_head), eps: config.norm_eps });
    this.norms = query_key_norm ? { query: norm("query"), key: norm("key") } : null;
    this.output = new Linear(take, `${name}.output`, widths.queries, d_model, bias);
  }

  /** (length, d_model) -> the same shape, for tokens from the position `start` on. Their keys and values go into the cache. */
  apply(x, start, cache, see) {
    const projected = this.projection.apply(x);
    const length = x.length / this.projection.inputs;
    see?.(`${this.name}.query_key_value`, [length, this.projection.outputs], projected);
    const queries = this.split(projected, start, length, cache);
    if (see) this.show(queries, start + length, cache, see);
    const mixed = this.mix(queries, start, length, cache, see);
    see?.(`${this.name}.heads`, [length, this.widths.queries], mixed);
    const result = this.output.apply(mixed);
    see?.(`${this.name}.output`, [length, this.output.outputs], result);
    return result;
  }

  /** The queries (length, heads, d_head), normed and rotated; the keys and the values are put into the cache. */
  split(projected, start, length, cache) {
    const { queries: ofQueries, keys: ofKeys } = this.widths;
    const all = ofQueries + 2 * ofKeys;
    const queries = new Float32Array(length * ofQueries);
    for (let row = 0; row < length; row++) {
      const [first, place] = [row * all, start + row];
      queries.set(projected.subarray(first, first + ofQueries), row * ofQueries);
      cache.keys.set(projected.subarray(first + ofQueries, first + ofQueries + ofKeys), place * ofKeys);
      cache.values.set(projected.subarray(first + ofQueries + ofKeys, first + all), place * ofKeys);
    }
    this.prepare(queries, start, this.numHeads, this.norms?.query);
    this.prepare(cache.keys.subarray(start * ofKeys, (start + length) * ofKeys), start, this.keyHeads, this.norms?.key);
    return queries;
  }

  /** Norm and rotate queries or keys (length, heads, d_head), which are changed. */
  prepare(x, start, heads, norm) {
    for (let at = 0; at < x.length; at += this.d_head) {
      const head = x.subarray(at, at + this.d_head);
      if (norm) normalize(head, 0, norm.weight, null, norm.eps, head);
      this.rotary?.rotate(head, start + Math.floor(at / this.d_head / heads));
    }
  }

  /** The values that each token's heads mix, (length, heads, d_head). */
  mix(queries, start, length, cache, see) {
    const { d_head, numHeads } = this;
    const mixed = new Float32Array(queries.length);
    const weights = new Float64Array(start + length);
    const seen = see && new Float32Array(numHeads * length * weights.length);
    for (let row = 0; row < length; row++) {
      const end = start + row + 1;
      const begin = Math.max(0, end - this.window);
      for (let head = 0; head < numHeads; head++) {
        const at = (row * numHeads + head) * d_head;
        const shared = Math.floor((head * this.keyHeads) / numHeads) * d_head; // several heads may use the same keys
        this.weigh(queries, at, cache.keys, shared, begin, end, weights);
        this.gather(cache.values, shared, begin, end, weights, mixed, at);
        seen?.set(weights.subarray(begin, end), (head * length + row) * weights.length + begin);
      }
    }
    see?.(`${this.name}.weights`, [numHeads, length, weights.length], seen);
    return mixed;
  }

  /** Write how much a query attends to each key from `begin` to `end`, into `weights`. */
  weigh(queries, at, keys, shared, begin, end, weights) {
    const scale = 1 / Math.sqrt(this.d_head);
    let highest = -Infinity;
    for (let place = begin; place < end; place++) {
      const key = place * this.widths.keys + shared;
      let score = 0;
      for (let i = 0; i < this.d_head; i++) score += queries[at + i] * keys[key + i];
      weights[place] = score * scale;
      highest = Math.max(highest, weights[place]);
    }
    softmax(weights, begin, end, highest);
  }

  /** Write the values from `begin` to `end`, each as much as it weighs, into `mixed`. */
  gather(values, shared, begin, end, weights, mixed, at) {
    for (let i = 0; i < this.d_head; i++) {
      let total = 0;
      for (let place = begin; place < end; place++) total += weights[place] * values[place * this.widths.keys + shared + i];
      mixed[at + i] = total;
    }
  }

  show(queries, places, cache, see) {
    const { queries: ofQueries, keys: ofKeys } = this.widths;
    see(`${this.name}.queries`, [queries.length / ofQueries, ofQueries], queries);
    see(`${this.name}.keys`, [places, ofKeys], cache.keys.subarray(0, places * ofKeys));
    see(`${this.name}.values`, [places, ofKeys], cache.values.subarray(0, places * ofKeys));
  }
}

/** Two linear layers with an activation between them; a gated activation has a third layer, the gate. */
class FeedForward {
  constructor(take, name, config) {
    const { d_model, d_ff, bias, activation } = config;
    const isGated = activation in GATED;
    this.name = name;
    this.up = new Linear(take, `${name}.up`, d_model, d_ff, bias);
    this.gate = isGated ? new Linear(take, `${name}.gate`, d_model, d_ff, bias) : null;
    this.down = new Linear(take, `${name}.down`, d_ff, d_model, bias);
    this.activation = FUNCTIONS[isGated ? GATED[activation] : activation].of;
  }

  /** (length, d_model) -> the same shape. */
  apply(x, see) {
    const up = this.up.apply(x);
    const gate = this.gate?.apply(x);
    const inner = gate ? up.map((value, i) => this.activation(gate[i]) * value) : up.map((value) => this.activation(value));
    const result = this.down.apply(inner);
    if (see) {
      const shape = [up.length / this.up.outputs, this.up.outputs];
      if (gate) see(`${this.name}.gate`, shape, gate);
      see(`${this.name}.up`, shape, up);
      see(`${this.name}.activation`, shape, inner);
      see(`${this.name}.down`, [shape[0], this.down.outputs], result);
    }
    return result;
  }
}

/** x (length, inputs) -> x W^T + b, (length, outputs). */
class Linear {
  constructor(take, name, inputs, outputs, hasBias) {
    Object.assign(this, { inputs, outputs });
    this.weight = take(`${name}.weight`, outputs, inputs);
    this.bias = hasBias ? take(`${name}.bias`, outputs) : new Float32Array(outputs);
  }

  apply(x) {
    const y = new Float32Array((x.length / this.inputs) * this.outputs);
    multiply(x, this.weight, this.bias, y);
    return y;
  }
}

/** A layer norm or an RMS norm of each token's vector. */
class Norm {
  constructor(take, name, { d_model, norm, norm_eps, bias }) {
    Object.assign(this, { name, width: d_model, eps: norm_eps, isCentred: norm === "layer" });
    this.weight = take(`${name}.weight`, d_model);
    this.bias = this.isCentred && bias ? take(`${name}.bias`, d_model) : null;
  }

  apply(x, see) {
    const y = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += this.width) {
      const row = x.subarray(start, start + this.width);
      const mean = this.isCentred ? row.reduce((total, value) => total + value, 0) / this.width : 0;
      normalize(row, mean, this.weight, this.bias, this.eps, y.subarray(start, start + this.width));
    }
    see?.(this.name, [x.length / this.width, this.width], y);
    return y;
  }
}

/** Write (x - mean) / sqrt(mean square of x - mean, + eps) * weight + bias into y, which may be x. */
function normalize(x, mean, weight, bias, eps, y) {
  let squares = 0;
  for (let i = 0; i < x.length; i++) squares += (x[i] - mean) ** 2;
  const scale = 1 / Math.sqrt(squares / x.length + eps);
  for (let i = 0; i < x.length; i++) y[i] = (x[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0);
}

/** Make of scores from `begin` to `end` positive numbers whose sum is 1. */
function softmax(scores, begin, end, highest) {
  let total = 0;
  for (let i = begin; i < end; i++) total += scores[i] = Math.exp(scores[i] - highest);
  for (let i = begin; i < end; i++) scores[i] /= total;
}

function sum(x, y) {
  return x.map((value, i) => value + y[i]);
}

// --------------------------------------------------------------------------------------------------------- positions

/** Rotary positions: pairs of numbers of a query or key, i and i + d_head / 2, are turned by an angle for their position. */
class Rotary {
  constructor(config) {
    const { block_size, d_head } = config;
    this.half = d_head / 2;
    const turns = frequencies(config, d_head);
    const angles = Float64Array.from({ length: block_size * this.half }, (_, at) => {
      return Math.floor(at / this.half) * turns[at % this.half];
    });
    this.cosines = Float32Array.from(angles, Math.cos);
    this.sines = Float32Array.from(angles, Math.sin);
  }

  /** Turn one head's query or key (d_head), which is changed, by its position. */
  rotate(head, position) {
    for (let i = 0, at = position * this.half; i < this.half; i++, at++) {
      const [first, second] = [head[i], head[i + this.half]];
      head[i] = first * this.cosines[at] - second * this.sines[at];
      head[i + this.half] = second * this.cosines[at] + first * this.sines[at];
    }
  }
}

// ---------------------------------------------------------------------------------------------------------- settings

const KNOWN = {
  positions: ["learned", "sinusoidal", "rotary"],
  norm: ["layer", "rms"],
  activation: [...Object.keys(FUNCTIONS), ...Object.keys(GATED)],
};

/** The settings of a GPTConfig. Throws Error for a file without them, and for a kind of part that is not known here. */
function configOf({ format, config: text }) {
  if (format !== "tinyformer.GPT") throw new Error("these are not the weights of a GPT that tinyformer wrote for a page");
  const config = JSON.parse(text);
  for (const [name, known] of Object.entries(KNOWN)) {
    if (!known.includes(config[name])) throw new Error(`${name} is ${config[name]}: only ${known.join(", ")} can be computed`);
  }
  const kind = config.rotary_scaling?.kind ?? "linear";
  if (!["linear", "llama3"].includes(kind)) throw new Error(`rotary scaling of the kind ${kind} cannot be computed`);
  const d_head = config.d_head || config.d_model / config.num_heads;
  return { ...config, d_head, numKeyValueHeads: config.num_key_value_heads || config.num_heads };
}

/** What takes the values of an array by its name and the sizes of its axes. */
function taker(arrays) {
  return (name, ...sizes) => {
    const { shape, values } = arrays.get(name) ?? {};
    if (!values) throw new Error(`the file does not have the weights ${name}`);
    if (String(shape) !== String(sizes)) throw new Error(`the weights ${name} are (${shape}): these settings need (${sizes})`);
    return values;
  };
}

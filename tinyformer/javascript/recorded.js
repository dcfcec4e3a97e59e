/**
 * The forward pass of a GPT, of which every array is kept: all that comes between the ids and the loss, in order. For models and
 * texts that one wants to look at; program.js computes faster, and keeps nothing.
 *
 * Read record() from top to bottom: it is the model. An array has, beside what kinds.js says, its `axes`, the `formula` of its
 * numbers, and the `source`: "module: a part of a line", the line of the library that computes it.
 */

import { computed } from "./kinds.js";
import { FUNCTIONS, GATED } from "./functions.js";
import { frequencies, sinusoidal } from "./places.js";

const GPT = "tinyformer.models.gpt";
const ATTENTION = "tinyformer.models.attention";
const BLOCKS = "tinyformer.models.blocks";
const KERNELS = "tinytensor.functional.attention";

/** What is said of the steps of each kind, unless a step says it itself. */
const FORMULAS = {
  embedding: "y[t, i] = table[id of t, i]",
  sum: "y = a + b",
  scale: "y = x × √width",
  linear: "y[t, j] = Σᵢ x[t, i] · weight[j, i]",
  norm: "y = (x − mean) ÷ √(variance + eps) × weight",
  split: "y[h, t, i] = x[t, first + h · d_head + i]",
  rotary: "pairs (i, i + d_head/2), turned by t · frequency[i]",
  scores: "y[h, q, k] = Σᵢ query[h, q, i] · key[h, k, i] ÷ √d_head",
  mask: "y[h, q, k] = x[h, q, k] if q may see k, else −∞",
  softmax: "y[i] = e^x[i] ÷ Σⱼ e^x[j]",
  mix: "y[h, q, i] = Σₖ weight[h, q, k] · value[h, k, i]",
  join: "y[t, h · d_head + i] = x[h, t, i]",
  product: "y = a · b",
  crossEntropy: "y[t] = log Σⱼ e^logit[t, j] − logit[t, next id]",
  mean: "y = Σₜ x[t] ÷ n",
};

/**
 * @param {object} config each setting of a GPTConfig
 * @param {Map<string, {shape: number[], values: Float32Array}>} weights by their names in `state_dict`
 * @param {number[]} ids of a text, at most block_size
 * @returns {{arrays: object[], loss: object|null}} all arrays in order, each parameter before the first step that uses it. The
 *   loss is the mean cross-entropy of each next token of the text; null for a text of one token.
 */
export function record(config, weights, ids) {
  const arrays = [];
  const length = ids.length;
  const heads = config.num_heads;
  const given = config.num_key_value_heads || heads; // heads of keys and values
  const width = config.d_head || config.d_model / heads; // of a head
  const angles = config.positions === "rotary" ? frequencies(config, width) : null;

  const keep = (array) => arrays[arrays.push(array) - 1];
  const step = (name, kind, shape, inputs, about) =>
    keep(computed({ name, kind, shape, inputs: inputs.filter(Boolean), axes: axesOf(shape), formula: FORMULAS[kind], ...about }));

  /** A parameter by its name; null if the model has none of this name, such as a bias. */
  const parameter = (name) => {
    if (!weights.has(name)) return null;
    const { shape, values } = weights.get(name);
    const axes = shape.length === 1 ? ["number"] : name.includes("embedding") ? ["id", "number"] : ["output", "input"];
    return arrays.find((array) => array.name === name) ?? keep({ name, kind: "parameter", shape, values, inputs: [], axes });
  };
  const linear = (name, x, source, weight = parameter(`${name}.weight`)) => {
    const bias = parameter(`${name}.bias`);
    const formula = FORMULAS.linear + (bias ? " + bias[j]" : "");
    return step(name, "linear", [x.shape[0], weight.shape[0]], [x, weight, bias], { source, formula });
  };
  const norm = (name, x, layer, more = {}) => {
    const [weight, bias] = [parameter(`${layer}.weight`), parameter(`${layer}.bias`)];
    const centred = config.norm === "layer" && !more.isOfHeads;
    const source = `tinytensor.functional.normalization: out = ${centred ? "distance" : "x"} * rsqrt(`;
    const formula = centred ? FORMULAS.norm + (bias ? " + bias" : "") : "y = x ÷ √(mean of x² + eps) × weight";
    return step(name, "norm", x.shape, [x, weight, bias], { centred, eps: config.norm_eps, source, formula });
  };

  const text = keep({ name: "ids", kind: "constant", shape: [length], axes: ["token"], values: Float64Array.from(ids), inputs: [], formula: "the text, cut into tokens" });
  let x = step("token_embedding", "embedding", [length, config.d_model], [parameter("token_embedding.weight"), text],
    { ids, source: `${GPT}: x = self.token_embedding(ids)` });
  if (config.scale_embeddings || config.positions === "sinusoidal") {
    x = step("scaled", "scale", x.shape, [x], { times: Math.sqrt(config.d_model), source: `${GPT}: x = x * self.config.embedding_scale` });
  }
  const positions = config.positions === "sinusoidal" ? keep(table(x.shape)) : config.positions === "learned" &&
    step("position_embedding", "embedding", x.shape, [parameter("position_embedding.weight")],
      { ids: ids.map((_, place) => place), formula: "y[t, i] = table[t, i]", source: "tinyformer.models.positions: x + (positions(x.shape[1]) if cache" });
  if (positions) x = step("embeddings", "sum", x.shape, [x, positions], { source: `${GPT}: x = self.dropout(add_positions(` });

  for (let layer = 0; layer < config.num_layers; layer++) {
    const block = `blocks.${layer}`;
    x = step(`${block}.attended`, "sum", x.shape, [x, attention(block, x)], { source: `${BLOCKS}: x = self._residual(x, self.attention_norm` });
    x = step(block, "sum", x.shape, [x, feedForward(block, x)], { source: `${BLOCKS}: self._residual(x, self.feed_forward_norm` });
  }
  const tied = config.tie_output ? "token_embedding.weight" : "output.weight";
  const logits = linear("logits", norm("norm", x, "norm"), `${GPT}: return linear(self.norm(x), self.output_weight())`, parameter(tied));
  step("probabilities", "softmax", logits.shape, [logits], { source: "tinytensor.kernels.numpy.softmax: e /= sum_over(e" });
  if (length === 1) return { arrays, loss: null };
  const losses = step("losses", "crossEntropy", [length - 1], [logits], { targets: ids.slice(1), axes: ["token"], source: "tinytensor.kernels.numpy.cross_entropy: losses = xp.log(total) - right" });
  return { arrays, loss: step("loss", "mean", [1], [losses], { axes: [""], source: "tinytensor.kernels.numpy.cross_entropy: losses.sum() / count if" }) };

  function attention(block, x) {
    const name = `${block}.attention`;
    const normed = norm(`${name}_norm`, x, `${name}_norm`);
    const packed = linear(`${name}.query_key_value`, normed, `${ATTENTION}: self._norm_and_rotate(self.query_key_value(x), cache)`);
    const split = (part, count, first) => step(`${name}.${part}`, "split", [count, length, width], [packed],
      { first: first * width, source: `${ATTENTION}: packed = projected.reshape(` });
    const prepared = (part, layer, array) => {
      const source = "tinytensor.functional.rotation: query, key = ";
      if (config.query_key_norm) array = norm(`${name}.${part}_normed`, array, `${name}.${layer}`, { isOfHeads: true });
      return angles ? step(`${name}.${part}_rotated`, "rotary", array.shape, [array], { frequencies: angles, source: `${source}rotate_pairs(` }) : array;
    };
    const queries = prepared("queries", "query_norm", split("queries", heads, 0));
    const keys = prepared("keys", "key_norm", split("keys", given, heads));
    const values = split("values", given, heads + given);
    const square = { axes: ["head", "query", "key"], times: width ** -0.5, window: config.sliding_window };
    const shape = [heads, length, length];
    const scores = step(`${name}.scores`, "scores", shape, [queries, keys], { ...square, source: `${ATTENTION}: scores = query @ key` });
    const masked = step(`${name}.masked`, "mask", shape, [scores], { ...square, source: `${KERNELS}: scores = where(mask, scores, -math.inf)` });
    const looks = step(`${name}.weights`, "softmax", shape, [masked], { ...square, source: `${KERNELS}: return weights / where(` });
    const mixed = step(`${name}.heads`, "mix", queries.shape, [looks, values], { source: `${KERNELS}: return matmul(weights, value)` });
    const joined = step(`${name}.joined`, "join", [length, heads * width], [mixed], { source: `${ATTENTION}: return join_heads(scaled_dot` });
    return linear(`${name}.output`, joined, `${ATTENTION}: return self.output(show(self, "heads"`);
  }

  function feedForward(block, x) {
    const name = `${block}.feed_forward`;
    const normed = norm(`${name}_norm`, x, `${name}_norm`);
    const line = `${BLOCKS}: inner = activation(self.up(x))`;
    const isGated = config.activation in GATED;
    const up = linear(`${name}.up`, normed, line);
    const before = isGated ? linear(`${name}.gate`, normed, line) : up;
    const called = isGated ? GATED[config.activation] : config.activation;
    const { formula, source } = FUNCTIONS[called];
    let inner = step(`${name}.${called}`, "activation", before.shape, [before], { called, formula: `y = ${formula}`, source: `tinytensor.ops.activations: ${source}` });
    if (isGated) inner = step(`${name}.gated`, "product", up.shape, [inner, up], { source: "tinytensor.ops.activations: return out if factor is None" });
    return linear(`${name}.down`, inner, `${BLOCKS}: return self.down(inner)`);
  }
}

function axesOf(shape) {
  return ["head", "token", "number"].slice(-shape.length);
}

/** The table of sinusoidal positions: it is no parameter, and comes from nothing but the place. */
function table(shape) {
  const formula = "y[t, i] = sin(t ÷ 10000^(i / width)); for an odd i the cosine of the angle before";
  const source = "tinyformer.models.positions: table[:, of_sines] = host.sin(angles)";
  return { name: "positions", kind: "constant", shape, values: sinusoidal(...shape), inputs: [], axes: axesOf(shape), formula, source };
}

/**
 * What a forward pass is made of: the kinds of steps, and how each number of a step comes from the numbers that it reads.
 *
 * An array of the pass is {name, kind, shape, values, inputs, ...}: `inputs` are the arrays that it was computed from, and the
 * numbers of `values` lie one row after the other. A kind has three functions. `o` is the place of a number in the step's values,
 * `k` says which of the inputs is meant, and `i` is a place in that input's values:
 *
 * - forward(step): the function from o to the number.
 * - partials(step, o, visit): visit(k, i, partial) for each number that it depends on, with the derivative by that number.
 * - explain(step, o): {first, each, terms, lines}: terms {value, factors: [[k, i], ...], times}, whose sum is the number, or
 *   becomes it by the `lines` {text, value} after it; `each` says what a term is where it is no product, and `first` are lines
 *   that must be known before.
 */

import { FUNCTIONS } from "./functions.js";
import { multiply } from "./products.js";

/**
 * The kinds whose numbers are sums of products: embeddings, linear layers, all of attention but the softmax. One function says
 * which: add(k, i, times, m, j) adds the number i of input k, times a constant, times the number j of input m if there is one.
 */
const SUMS = {
  embedding({ shape: [, width], ids }, o, add) {
    add(0, ids[Math.floor(o / width)] * width + (o % width));
  },
  sum(step, o, add) {
    add(0, o);
    add(1, o);
  },
  scale({ times }, o, add) {
    add(0, o, times);
  },
  product(step, o, add) {
    add(0, o, 1, 1, o);
  },
  linear({ inputs: [, weight, bias] }, o, add) {
    const [outs, ins] = weight.shape;
    const unit = o % outs;
    const row = ((o - unit) / outs) * ins;
    for (let i = 0; i < ins; i++) add(0, row + i, 1, 1, unit * ins + i);
    if (bias) add(2, unit);
  },
  split({ shape: [, length, width], inputs: [x], first }, o, add) { // columns of x as heads
    const [head, token, i] = [Math.floor(o / (length * width)), Math.floor(o / width) % length, o % width];
    add(0, token * x.shape[1] + first + head * width + i);
  },
  join({ inputs: [{ shape: [heads, length, width] }] }, o, add) { // heads side by side again
    const [token, head, i] = [Math.floor(o / (heads * width)), Math.floor(o / width) % heads, o % width];
    add(0, (head * length + token) * width + i);
  },
  rotary({ shape: [, length, width], frequencies }, o, add) { // each pair of numbers is turned by an angle
    const [token, i] = [Math.floor(o / width) % length, o % width];
    const angle = token * frequencies[i % (width / 2)];
    const isFirst = i < width / 2;
    add(0, o, Math.cos(angle));
    add(0, isFirst ? o + width / 2 : o - width / 2, isFirst ? -Math.sin(angle) : Math.sin(angle));
  },
  scores({ shape: [heads, length], inputs: [queries, keys], times }, o, add) {
    const [head, query, key] = [Math.floor(o / (length * length)), Math.floor(o / length) % length, o % length];
    const width = queries.shape[2];
    const [from, to] = [(head * length + query) * width, (sharedHead(head, heads, keys) * length + key) * width];
    for (let i = 0; i < width; i++) add(0, from + i, times, 1, to + i);
  },
  mix({ shape: [heads, length, width], inputs: [, given] }, o, add) { // the values, weighted by attention
    const [row, i] = [Math.floor(o / width), o % width];
    const head = sharedHead(Math.floor(row / length), heads, given);
    for (let key = 0; key < length; key++) add(0, row * length + key, 1, 1, (head * length + key) * width + i);
  },
  mean({ inputs: [x] }, o, add) {
    for (let i = 0; i < x.values.length; i++) add(0, i, 1 / x.values.length);
  },
};

/** Of fewer heads of keys and values than of queries, each is used by as many neighbouring heads of queries. */
function sharedHead(head, heads, { shape: [given] }) {
  return Math.floor(head / (heads / given));
}

/** Of a sum of products follow the number, its derivatives by the product rule, and its terms. */
function fromTerms(terms) {
  return {
    forward(step) {
      const inputs = step.inputs.map(({ values }) => values);
      let sum = 0;
      const add = (k, i, times = 1, m = -1, j = 0) => { sum += times * inputs[k][i] * (m < 0 ? 1 : inputs[m][j]); };
      return (o) => {
        sum = 0;
        terms(step, o, add);
        return sum;
      };
    },
    partials(step, o, visit) {
      const inputs = step.inputs.map(({ values }) => values);
      terms(step, o, (k, i, times = 1, m = -1, j = 0) => {
        visit(k, i, m < 0 ? times : times * inputs[m][j]);
        if (m >= 0) visit(m, j, times * inputs[k][i]);
      });
    },
    explain(step, o) {
      const found = [];
      terms(step, o, (k, i, times = 1, m = -1, j = 0) => {
        const factors = m < 0 ? [[k, i]] : [[k, i], [m, j]];
        found.push({ factors, times, value: factors.reduce((value, [n, at]) => value * step.inputs[n].values[at], times) });
      });
      return { first: [], each: "", terms: found, lines: [] };
    },
  };
}

/** What is known of the row of inputs that a number is computed from, and the number's place `at` in it. It is computed once for
 * all numbers of the row, as these come one after the other. */
function ofRow(compute) {
  const latest = new WeakMap(); // by the step
  return (step, o) => {
    const [{ shape, values }] = step.inputs;
    const width = shape.at(-1);
    const at = step.targets ? 0 : o % width; // a loss has a whole row of logits
    const start = step.targets ? o * width : o - at;
    let known = latest.get(step);
    if (known?.start !== start) {
      const row = values.subarray(start, start + width);
      known = { at, start, width, row, ...compute(row, step) };
      latest.set(step, known);
    }
    known.at = at;
    return known;
  };
}

/** The mean of a row (0 for an RMS norm, which leaves it in), and by what its distances from it are divided. */
const spreadOf = ofRow((row, { centred, eps }) => {
  const mean = centred ? row.reduce((sum, x) => sum + x, 0) / row.length : 0;
  const variance = row.reduce((sum, x) => sum + (x - mean) ** 2, 0) / row.length;
  return { mean, variance, deviation: Math.sqrt(variance + eps) };
});

/** The numbers of a row as powers of e, below 1 as the largest becomes 0: nothing overflows. */
const powersOf = ofRow((row) => {
  const largest = row.reduce((a, b) => Math.max(a, b));
  const powers = row.map((x) => Math.exp(x - largest));
  return { largest, powers, sum: powers.reduce((a, b) => a + b) };
});

const termsOf = (numbers, start) => Array.from(numbers, (value, i) => ({ factors: [[0, start + i]], times: 1, value }));

const OTHERS = {
  /** LayerNorm, or with `centred` false RMSNorm: (x − mean) / deviation × weight + bias. */
  norm: {
    forward: (step) => (o) => {
      const { row, at, mean, deviation } = spreadOf(step, o);
      const [, weight, bias] = step.inputs;
      return ((row[at] - mean) / deviation) * weight.values[at] + (bias ? bias.values[at] : 0);
    },
    partials(step, o, visit) {
      const { row, at, start, width, mean, deviation } = spreadOf(step, o);
      const [, weight, bias] = step.inputs;
      const normed = (i) => (row[i] - mean) / deviation;
      for (let i = 0; i < width; i++) {
        const moves = (i === at ? 1 : 0) - (step.centred ? 1 / width : 0) - (normed(i) * normed(at)) / width;
        visit(0, start + i, (weight.values[at] / deviation) * moves);
      }
      visit(1, at, normed(at));
      if (bias) visit(2, at, 1);
    },
    explain(step, o) {
      const { row, at, start, width, mean, variance, deviation } = spreadOf(step, o);
      const [, weight, bias] = step.inputs;
      const normed = (row[at] - mean) / deviation;
      const scaled = normed * weight.values[at];
      return {
        first: step.centred ? [{ text: "mean of the row", value: mean }] : [],
        each: step.centred ? "(x − mean)²" : "x²",
        terms: termsOf(row.map((x) => (x - mean) ** 2), start),
        lines: [
          { text: `÷ ${width}`, value: variance },
          { text: `+ ${step.eps}, square root: the deviation`, value: deviation },
          { text: step.centred ? "(x − mean) ÷ deviation" : "x ÷ deviation", value: normed, factors: [[0, o]] },
          { text: "× weight", value: scaled, factors: [[1, at]] },
          ...(bias ? [{ text: "+ bias", value: scaled + bias.values[at], factors: [[2, at]] }] : []),
        ],
      };
    },
  },
  /** Scores stay where the query may see the key. Elsewhere they become −∞, whose power of e is 0. */
  mask: {
    forward: (step) => (o) => (sees(step, o) ? step.inputs[0].values[o] : -Infinity),
    partials: (step, o, visit) => sees(step, o) && visit(0, o, 1),
    explain(step, o) {
      const value = step.inputs[0].values[o];
      const lines = sees(step, o) ? [] : [{ text: "the query must not see this key", value: -Infinity }];
      return { first: [], each: "", terms: [{ factors: [[0, o]], times: 1, value }], lines };
    },
  },
  softmax: {
    forward: (step) => (o) => {
      const { at, powers, sum } = powersOf(step, o);
      return powers[at] / sum;
    },
    partials(step, o, visit) {
      const { at, start, powers, sum } = powersOf(step, o);
      powers.forEach((power, i) => visit(0, start + i, (powers[at] / sum) * ((i === at ? 1 : 0) - power / sum)));
    },
    explain(step, o) {
      const { at, start, largest, powers, sum } = powersOf(step, o);
      const lines = [{ text: "its own power", value: powers[at], factors: [[0, o]] }, { text: "÷ the sum", value: powers[at] / sum }];
      return { first: [{ text: "largest of the row", value: largest }], each: "e^(x − largest)", terms: termsOf(powers, start), lines };
    },
  },
  activation: {
    forward: ({ inputs: [x], called }) => (o) => FUNCTIONS[called].of(x.values[o]),
    partials: (step, o, visit) => visit(0, o, FUNCTIONS[step.called].slope(step.inputs[0].values[o])),
    explain(step, o) {
      const x = step.inputs[0].values[o];
      const { of, formula } = FUNCTIONS[step.called];
      return { first: [], each: "", terms: [{ factors: [[0, o]], times: 1, value: x }], lines: [{ text: formula, value: of(x) }] };
    },
  },
  /** How unlikely the model found the token that came: minus the logarithm of its probability. */
  crossEntropy: {
    forward: (step) => (o) => {
      const { row, largest, sum } = powersOf(step, o);
      return Math.log(sum) + largest - row[step.targets[o]];
    },
    partials(step, o, visit) {
      const { start, powers, sum } = powersOf(step, o);
      powers.forEach((power, i) => visit(0, start + i, power / sum - (i === step.targets[o] ? 1 : 0)));
    },
    explain(step, o) {
      const { row, start, largest, powers, sum } = powersOf(step, o);
      const next = step.targets[o];
      const all = Math.log(sum) + largest;
      const lines = [
        { text: "logarithm, + largest", value: all },
        { text: "− the logit of the token that came", value: all - row[next], factors: [[0, start + next]] },
      ];
      return { first: [{ text: "largest of the row", value: largest }], each: "e^(x − largest)", terms: termsOf(powers, start), lines };
    },
  },
};

/** Whether a query may see a key: itself and those before it, with a window only as many. */
function sees({ shape: [, length], window }, o) {
  const [query, key] = [Math.floor(o / length) % length, o % length];
  return key <= query && (!window || key > query - window);
}

/** All kinds of steps, by name. */
export const KINDS = { ...Object.fromEntries(Object.entries(SUMS).map(([name, terms]) => [name, fromTerms(terms)])), ...OTHERS };

/**
 * What follows from the terms of a linear layer, in plain loops, as nearly all of a pass is spent there. The gradients (of the inputs
 * x, weight and bias) grow by what the step's gradient gives them.
 */
KINDS.linear.all = ({ inputs: [{ values: x }, { values: weight, shape: [outs] }, bias] }, y) => {
  if (bias) for (let at = 0; at < y.length; at += outs) y.set(bias.values, at);
  multiply(x, weight, y, outs);
};
KINDS.linear.backward = ({ inputs: [{ values: x }, { values: weight, shape: [outs, ins] }] }, gradient, [ofX, ofWeight, ofBias]) => {
  gradient.forEach((g, o) => {
    const unit = o % outs;
    const [from, to] = [((o - unit) / outs) * ins, unit * ins];
    for (let i = 0; i < ins; i++) {
      ofX[from + i] += g * weight[to + i];
      ofWeight[to + i] += g * x[from + i];
    }
    if (ofBias) ofBias[unit] += g;
  });
};

/** A step with its numbers: an array for others to read. */
export function computed(step) {
  const { all, forward } = KINDS[step.kind];
  const values = new Float64Array(step.shape.reduce((product, size) => product * size, 1));
  if (all) all(step, values);
  else {
    const numberAt = forward(step);
    for (let o = 0; o < values.length; o++) values[o] = numberAt(o);
  }
  return { ...step, values };
}

/** Give the inputs of a step their part of its gradient, by the chain rule: gradients, an array for each, grow. */
export function passBack(step, gradient, gradients) {
  const { partials, backward } = KINDS[step.kind];
  if (backward) return backward(step, gradient, gradients);
  gradient.forEach((g, o) => {
    if (g) partials(step, o, (k, i, partial) => { gradients[k][i] += g * partial; });
  });
}

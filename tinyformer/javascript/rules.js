/**
 * How each number that an op computes comes from the numbers that it gets: a rule for each op of ops.js through which gradients flow.
 *
 * A rule is made for one call, and has a `formula` and these functions. `o` is the index of a number of the result, `x` one of the
 * arrays that the call got, and `i` an index in it:
 *
 * - partials(o, visit): visit(x, i, partial) for each number that it depends on, with the derivative by that number.
 * - explain(o): {first, each, terms, lines}: terms {value, factors: [[x, i], ...], times}, whose sum is the number, or becomes it by
 *   the `lines` {text, value} after it; `each` says what a term is where it is no product, and `first` are lines that must be known
 *   before.
 * - from(o), where numbers are only moved: [x, i], the one that it is.
 */

import { FUNCTIONS } from "./functions.js";
import { OPS, broadcast, groups, indices } from "./ops.js";

/** A rule of sums of products. terms(o, add) calls add(x, i, times, y, j) for each: a number of x, times a constant, times a number of y
 * if there is one. Its derivatives follow by the product rule. */
function ofTerms(formula, terms) {
  return {
    formula: `y${formula}`,
    partials(o, visit) {
      terms(o, (x, i, times = 1, y = null, j = 0) => {
        visit(x, i, y ? times * y.values[j] : times);
        if (y) visit(y, j, times * x.values[i]);
      });
    },
    explain(o) {
      const all = [];
      terms(o, (x, i, times = 1, y = null, j = 0) => {
        const factors = y ? [[x, i], [y, j]] : [[x, i]];
        all.push({ factors, times, value: factors.reduce((value, [array, at]) => value * array.values[at], times) });
      });
      return { first: [], each: "", terms: all, lines: [] };
    },
  };
}

/** What an elementwise op gets, numbers as arrays, too: of each the array x, and the index at(o) of its number for a result's. */
function operandsOf(given, { shape }) {
  return Object.values(given).filter((x) => x !== null).map((operand) => {
    const x = typeof operand === "object" ? operand : { shape: [], values: [operand] };
    const from = indices(shape, broadcast(x.shape, shape).strides[0]);
    return { x, at: (o) => from[o] };
  });
}

/** The rule of an elementwise op that adds its operands up, each times a sign. */
const signed = (formula, ...signs) => (given, result) => {
  const operands = operandsOf(given, result);
  return ofTerms(formula, (o, add) => operands.forEach(({ x, at }, k) => add(x, at(o), signs[k])));
};

/** The rule of any other elementwise op: slopes of its operands gives the derivative by each. */
const elementwise = (formula, slopes) => (given, result) => {
  const operands = operandsOf(given, result);
  const numbers = (o) => operands.map(({ x, at }) => x.values[at(o)]);
  return {
    formula: `y = ${formula}`,
    partials(o, visit) {
      const all = slopes(...numbers(o));
      operands.forEach(({ x, at }, k) => visit(x, at(o), all[k]));
    },
    explain: (o) => ({
      first: [],
      each: "",
      terms: operands.map(({ x, at }) => ({ factors: [[x, at(o)]], times: 1, value: x.values[at(o)] })),
      lines: [{ text: formula, value: result.values[o] }],
    }),
  };
};

/** The rule of an op that only moves numbers: the op itself moves their indices. */
const moves = (op) => (given) => {
  const arrays = given.arrays ?? [given.x];
  let count = 0;
  const numbered = arrays.map(({ shape, values }) => ({ shape, values: Float64Array.from(values, () => count++) }));
  const { values } = OPS[op](given.arrays ? { ...given, arrays: numbered } : { ...given, x: numbered[0] });
  const from = (o) => {
    let [k, i] = [0, values[o]];
    while (i >= arrays[k].values.length) i -= arrays[k++].values.length;
    return [arrays[k], i];
  };
  return { ...ofTerms(" = x, at another place", (o, add) => add(...from(o))), from };
};

/** What is known of the group of numbers along an axis that a number is in, and its index `at` in the group. It is computed once for
 * all numbers of a group that come one after the other. */
function ofGroups(x, axis, compute) {
  const { firsts, others } = groups(x, axis);
  const [starts, places] = [new Int32Array(x.values.length), new Int32Array(x.values.length)];
  firsts.forEach((first) => others.forEach((other, at) => { [starts[first + other], places[first + other]] = [first, at]; }));
  let known = null;
  return (i) => {
    if (known?.start !== starts[i]) {
      const row = Float64Array.from(others, (other) => x.values[starts[i] + other]);
      known = { start: starts[i], row, indexOf: (at) => starts[i] + others[at], ...compute(row) };
    }
    known.at = places[i];
    return known;
  };
}

/** The numbers of a row as powers of e, below 1 as the largest becomes 0: nothing overflows. */
function powersOf(row) {
  const largest = row.reduce((a, b) => Math.max(a, b));
  const powers = row.map((x) => Math.exp(x - largest));
  return { largest, powers, sum: powers.reduce((a, b) => a + b) };
}

const termsOf = (x, numbers, indexOf) => Array.from(numbers, (value, at) => ({ factors: [[x, indexOf(at)]], times: 1, value }));

/** LayerNorm, or RMSNorm, whose mean is taken to be 0: (x - mean) / deviation * weight + bias. */
const norm = (isCentred) => ({ x, weight, bias = null, eps }) => {
  const width = x.shape.at(-1);
  const groupOf = ofGroups(x, -1, (row) => {
    const mean = isCentred ? row.reduce((sum, one) => sum + one, 0) / width : 0;
    const variance = row.reduce((sum, one) => sum + (one - mean) ** 2, 0) / width;
    const deviation = Math.sqrt(variance + eps);
    return { mean, variance, deviation, normed: row.map((one) => (one - mean) / deviation) };
  });
  const factor = (at) => weight?.values[at] ?? 1;
  return {
    formula: `y = ${isCentred ? "(x − mean) ÷ √(variance + eps)" : "x ÷ √(mean of x² + eps)"}${weight ? " × weight" : ""}${bias ? " + bias" : ""}`,
    partials(o, visit) {
      const { at, indexOf, normed, deviation } = groupOf(o);
      normed.forEach((one, i) => visit(x, indexOf(i), (factor(at) / deviation) * ((i === at) - isCentred / width - (one * normed[at]) / width)));
      if (weight) visit(weight, at, normed[at]);
      if (bias) visit(bias, at, 1);
    },
    explain(o) {
      const { at, indexOf, row, mean, variance, deviation, normed } = groupOf(o);
      const scaled = normed[at] * factor(at);
      return {
        first: isCentred ? [{ text: "mean of the row", value: mean }] : [],
        each: isCentred ? "(x − mean)²" : "x²",
        terms: termsOf(x, row.map((one) => (one - mean) ** 2), indexOf),
        lines: [
          { text: `÷ ${width}`, value: variance },
          { text: `+ ${eps}, square root: the deviation`, value: deviation },
          { text: isCentred ? "(x − mean) ÷ deviation" : "x ÷ deviation", value: normed[at], factors: [[x, o]] },
          ...(weight ? [{ text: "× weight", value: scaled, factors: [[weight, at]] }] : []),
          ...(bias ? [{ text: "+ bias", value: scaled + bias.values[at], factors: [[bias, at]] }] : []),
        ],
      };
    },
  };
};

/** Which number of an array with as many rows, or one for all, is the first of each row. */
const firstsOf = ({ shape }, rows) => indices(rows, broadcast(shape, rows).strides[0]);

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

/** The rules by the names of the ops. A rule is (arguments by name, result) => rule. */
export const RULES = {
  add: signed(" = a + b", 1, 1),
  subtract: signed(" = a − b", 1, -1),
  negative: signed(" = −x", -1),
  multiply(given, result) {
    const [a, b] = operandsOf(given, result);
    return ofTerms(" = a · b", (o, add) => add(a.x, a.at(o), 1, b.x, b.at(o)));
  },
  divide: elementwise("a ÷ b", (a, b) => [1 / b, -a / b ** 2]),
  power: elementwise("a ^ b", (a, b) => [b * a ** (b - 1), a ** b * Math.log(a)]),
  maximum: elementwise("the larger one", (a, b) => [a >= b, a < b].map(Number)),
  minimum: elementwise("the smaller one", (a, b) => [a <= b, a > b].map(Number)),
  square: elementwise("x²", (x) => [2 * x]),
  sqrt: elementwise("√x", (x) => [0.5 / Math.sqrt(x)]),
  rsqrt: elementwise("1 ÷ √x", (x) => [-0.5 * x ** -1.5]),
  exp: elementwise("e^x", (x) => [Math.exp(x)]),
  log: elementwise("log x", (x) => [1 / x]),
  tanh: elementwise("tanh x", (x) => [1 - Math.tanh(x) ** 2]),
  sigmoid: elementwise("1 ÷ (1 + e^−x)", (x) => [sigmoid(x) * sigmoid(-x)]),
  ...Object.fromEntries(Object.entries(FUNCTIONS).map(([op, { of, slope, formula }]) => [
    op,
    (given, result) => elementwise(given.factor ? `${formula} × factor` : formula, (x, factor = 1) => [slope(x) * factor, of(x)])(given, result),
  ])),
  /** In attention, scores stay where the query may see the key. Elsewhere they become −∞, whose power of e is 0. */
  where(given, result) {
    const [condition, x, y] = operandsOf(given, result);
    return ofTerms(" = a where the condition holds, else b", (o, add) => {
      const { x: array, at } = condition.x.values[condition.at(o)] ? x : y;
      add(array, at(o));
    });
  },

  sum({ x, axis }) {
    const { firsts, others } = groups(x, axis);
    return ofTerms(" = Σᵢ x[i]", (o, add) => others.forEach((other) => add(x, firsts[o] + other)));
  },
  mean({ x, axis }) {
    const { firsts, others } = groups(x, axis);
    return ofTerms(" = Σᵢ x[i] ÷ n", (o, add) => others.forEach((other) => add(x, firsts[o] + other, 1 / others.length)));
  },
  max({ x, axis }, { values }) {
    const { firsts, others } = groups(x, axis);
    return ofTerms(" = the largest of the row", (o, add) => add(x, firsts[o] + others.find((other) => x.values[firsts[o] + other] === values[o])));
  },
  cumsum({ x, axis }) {
    const groupOf = ofGroups(x, axis, () => ({}));
    return ofTerms("[i] = x[0] + ... + x[i]", (o, add) => {
      const { at, indexOf } = groupOf(o);
      for (let i = 0; i <= at; i++) add(x, indexOf(i));
    });
  },
  softmax({ x, axis }) {
    const groupOf = ofGroups(x, axis, powersOf);
    return {
      formula: "y[i] = e^x[i] ÷ Σⱼ e^x[j]",
      partials(o, visit) {
        const { at, indexOf, powers, sum } = groupOf(o);
        powers.forEach((power, i) => visit(x, indexOf(i), (powers[at] / sum) * ((i === at) - power / sum)));
      },
      explain(o) {
        const { at, indexOf, largest, powers, sum } = groupOf(o);
        const lines = [{ text: "its own power", value: powers[at], factors: [[x, o]] }, { text: "÷ the sum", value: powers[at] / sum }];
        return { first: [{ text: "largest of the row", value: largest }], each: "e^(x − largest)", terms: termsOf(x, powers, indexOf), lines };
      },
    };
  },
  /** How unlikely the model found the token that came: minus the logarithm of its probability. */
  cross_entropy({ logits: x, targets: { values: targets }, ignore_index }) {
    const width = x.shape.at(-1);
    const groupOf = ofGroups(x, -1, powersOf);
    return {
      formula: "y[t] = log Σⱼ e^logit[t, j] − logit[t, next id]",
      partials(o, visit) {
        if (targets[o] === ignore_index) return;
        const { indexOf, powers, sum } = groupOf(o * width);
        powers.forEach((power, i) => visit(x, indexOf(i), power / sum - (i === targets[o])));
      },
      explain(o) {
        const { indexOf, row, largest, powers, sum } = groupOf(o * width);
        const all = Math.log(sum) + largest;
        const lines = [
          { text: "logarithm, + largest", value: all },
          { text: "− the logit of the token that came", value: all - row[targets[o]], factors: [[x, indexOf(targets[o])]] },
        ];
        return { first: [{ text: "largest of the row", value: largest }], each: "e^(x − largest)", terms: termsOf(x, powers, indexOf), lines };
      },
    };
  },
  layer_norm: norm(true),
  rms_norm: norm(false),

  embedding: ({ weight, ids: { values: ids } }, { shape }) =>
    ofTerms("[t, i] = table[id of t, i]", (o, add) => add(weight, ids[Math.floor(o / shape.at(-1))] * shape.at(-1) + (o % shape.at(-1)))),
  linear({ x, weight, bias }) {
    const [outs, ins] = weight.shape;
    const rule = ofTerms(`[t, j] = Σᵢ x[t, i] · weight[j, i]${bias ? " + bias[j]" : ""}`, (o, add) => {
      const unit = o % outs;
      const row = ((o - unit) / outs) * ins;
      for (let i = 0; i < ins; i++) add(x, row + i, 1, weight, unit * ins + i);
      if (bias) add(bias, unit);
    });
    /** The gradients grow by what the result's gives them: in plain loops, as nearly all of a backward pass is spent here. */
    rule.backward = (gradient, gradients) => {
      const [ofX, ofWeight, ofBias] = [x, weight, bias].map((array) => gradients.get(array));
      gradient.forEach((g, o) => {
        const unit = o % outs;
        const [from, to] = [((o - unit) / outs) * ins, unit * ins];
        for (let i = 0; i < ins; i++) {
          ofX[from + i] += g * weight.values[to + i];
          ofWeight[to + i] += g * x.values[from + i];
        }
        if (ofBias) ofBias[unit] += g;
      });
    };
    return rule;
  },
  matmul({ x, y }, { shape }) {
    const [[rows, inner], columns] = [x.shape.slice(-2), y.shape.at(-1)];
    const [ofX, ofY] = [x, y].map((array) => firstsOf({ shape: array.shape.slice(0, -2) }, shape.slice(0, -2)));
    return ofTerms("[q, k] = Σᵢ a[q, i] · b[i, k]", (o, add) => {
      const [row, matrix] = [Math.floor(o / columns) % rows, Math.floor(o / columns / rows)];
      const [first, second] = [(ofX[matrix] * rows + row) * inner, ofY[matrix] * inner * columns + (o % columns)];
      for (let i = 0; i < inner; i++) add(x, first + i, 1, y, second + i * columns);
    });
  },
  rotate_pairs({ x, cosine, sine }) {
    const half = x.shape.at(-1) / 2;
    const [ofCosines, ofSines] = [cosine, sine].map(({ shape }) => firstsOf({ shape: [...shape.slice(0, -1), 1] }, [...x.shape.slice(0, -1), 1]).map((row) => row * half));
    return ofTerms(" = pairs (i, i + d_head/2), turned by an angle", (o, add) => {
      const [row, i] = [Math.floor(o / half / 2), o % (2 * half)];
      const isFirst = i < half;
      add(x, o, 1, cosine, ofCosines[row] + (i % half));
      add(x, isFirst ? o + half : o - half, isFirst ? -1 : 1, sine, ofSines[row] + (i % half));
    });
  },
  ...Object.fromEntries(["reshape", "broadcast_to", "transpose", "swapaxes", "getitem", "concatenate"].map((op) => [op, moves(op)])),
};

/** The ops through which no gradient flows: what they compute changes in steps, or not at all. */
export const CONSTANT = new Set(["equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_not", "full", "arange", "causal_mask", "astype"]);

/**
 * The ops of which recorded programs consist.
 *
 * An array is {shape, values}: its numbers lie one row after the other. What an op returns may share the values of what it got, and
 * nothing is ever written to them. Booleans are 0 and 1.
 */

import { FUNCTIONS } from "./functions.js";
import { multiply } from "./products.js";

// ------------------------------------------------------------------------------------------------------- shapes and indices

const sizeOf = (shape) => shape.reduce((product, length) => product * length, 1);
const stridesOf = (shape) => shape.map((_, axis) => sizeOf(shape.slice(axis + 1)));

const isSame = (one, other) => one.length === other.length && one.every((length, axis) => length === other[axis]);

/** An array whose numbers a function of their index gives. */
function filled(shape, f) {
  const values = new Float64Array(sizeOf(shape));
  for (let o = 0; o < values.length; o++) values[o] = f(o);
  return { shape, values };
}

/** The indices of all elements of an array of this shape, in order, where a step along each axis is its stride. */
export function indices(shape, strides, start = 0) {
  let all = Int32Array.of(start);
  shape.forEach((length, axis) => {
    const longer = new Int32Array(all.length * length);
    for (let i = 0, o = 0; i < all.length; i++) for (let j = 0; j < length; j++) longer[o++] = all[i] + j * strides[axis];
    all = longer;
  });
  return all;
}

/** The elements of x at such indices, as an array of this shape. */
function moved({ values }, shape, strides, start) {
  const from = indices(shape, strides, start);
  return filled(shape, (o) => values[from[o]]);
}

/** The shape to which arrays broadcast, and the strides of each in it: 0 where it is repeated. */
export function broadcast(...shapes) {
  const ndim = Math.max(...shapes.map((shape) => shape.length));
  const padded = shapes.map((shape) => [...Array(ndim - shape.length).fill(1), ...shape]);
  const shape = padded[0].map((_, axis) => padded.reduce((length, { [axis]: other }) => (length === 1 ? other : length), 1));
  if (padded.some((one) => one.some((length, axis) => length !== 1 && length !== shape[axis]))) throw new Error(`the shapes ${shapes.map((one) => `(${one})`).join(" and ")} do not fit`);
  return { shape, strides: padded.map((one) => stridesOf(one).map((stride, axis) => (one[axis] === 1 ? 0 : stride))) };
}

/** An op of one to three arrays or numbers, of which each element is computed alone. */
function elementwise(f) {
  return (given) => {
    const inputs = Object.values(given).filter((x) => x !== null).map((x) => (typeof x === "object" ? x : { shape: [], values: [x] }));
    const [{ shape: first, values: a }, { shape: second, values: b } = {}, { values: c } = {}] = inputs;
    if (!b) return filled(first, (o) => f(a[o]));
    if (!c && isSame(first, second)) return filled(first, (o) => f(a[o], b[o]));
    const { shape, strides } = broadcast(...inputs.map((x) => x.shape));
    const [i, j, k] = strides.map((along) => indices(shape, along));
    return filled(shape, c ? (o) => f(a[i[o]], b[j[o]], c[k[o]]) : (o) => f(a[i[o]], b[j[o]]));
  };
}

/** The elements of x in groups along some axes, by default all: the index of each group's first, and what to add for its others. */
export function groups({ shape }, axis) {
  const strides = stridesOf(shape);
  const along = shape.map((_, i) => axis === null || [axis].flat().some((one) => (one + shape.length) % shape.length === i));
  const part = (isAlong) => [shape, strides].map((of) => of.filter((_, i) => along[i] === isAlong));
  return { firsts: indices(...part(false)), others: indices(...part(true)), along };
}

/** An op that makes one number of each group of elements. */
function reduction(f) {
  return ({ x, axis, keepdims }) => {
    const { firsts, others, along } = groups(x, axis);
    const shape = keepdims ? x.shape.map((length, i) => (along[i] ? 1 : length)) : x.shape.filter((_, i) => !along[i]);
    return filled(shape, (o) => f(Array.from(others, (other) => x.values[firsts[o] + other])));
  };
}

/** An op that makes as many numbers of each group of elements: f changes them. */
function grouped(x, axis, f) {
  const { firsts, others } = groups(x, axis);
  const values = new Float64Array(x.values);
  const group = new Float64Array(others.length);
  for (const first of firsts) {
    for (let i = 0; i < group.length; i++) group[i] = values[first + others[i]];
    f(group);
    for (let i = 0; i < group.length; i++) values[first + others[i]] = group[i];
  }
  return { shape: x.shape, values };
}

/** Make of a row (x - mean) / sqrt(variance + eps) * weight + bias; for an RMS norm the mean is taken to be 0. */
function normalize(row, isCentred, weight, bias, eps) {
  const width = row.length, factors = weight?.values, added = bias?.values;
  let mean = 0, squares = 0;
  if (isCentred) for (let i = 0; i < width; i++) mean += row[i] / width;
  for (let i = 0; i < width; i++) squares += (row[i] - mean) ** 2;
  const scale = 1 / Math.sqrt(squares / width + eps);
  for (let i = 0; i < width; i++) row[i] = (row[i] - mean) * scale * (factors ? factors[i] : 1) + (added ? added[i] : 0);
}

function norm({ x, weight, bias, eps }, isCentred) {
  const [values, width] = [new Float64Array(x.values), x.shape.at(-1)];
  for (let at = 0; at < values.length; at += width) normalize(values.subarray(at, at + width), isCentred, weight, bias, eps);
  return { shape: x.shape, values };
}

/** Make of scores from `begin` to `end` positive numbers whose sum is 1. */
function softmax(scores, begin = 0, end = scores.length) {
  let [highest, total] = [-Infinity, 0];
  for (let i = begin; i < end; i++) highest = Math.max(highest, scores[i]);
  for (let i = begin; i < end; i++) total += scores[i] = Math.exp(scores[i] - highest);
  for (let i = begin; i < end; i++) scores[i] /= total;
}

// ------------------------------------------------------------------------------------------------------------------ the ops

/** All ops by the names that they have in tinytensor. An op is (arguments by name, run, call) => array. Python reads the names here. */
export const OPS = {
  add: elementwise((x, y) => x + y),
  subtract: elementwise((x, y) => x - y),
  multiply: elementwise((x, y) => x * y),
  divide: elementwise((x, y) => x / y),
  power: elementwise((x, y) => x ** y),
  maximum: elementwise((x, y) => Math.max(x, y)),
  minimum: elementwise((x, y) => Math.min(x, y)),
  negative: elementwise((x) => -x),
  square: elementwise((x) => x * x),
  sqrt: elementwise((x) => Math.sqrt(x)),
  rsqrt: elementwise((x) => 1 / Math.sqrt(x)),
  exp: elementwise((x) => Math.exp(x)),
  log: elementwise((x) => Math.log(x)),
  tanh: elementwise((x) => Math.tanh(x)),
  sigmoid: elementwise((x) => 1 / (1 + Math.exp(-x))),
  relu: elementwise(FUNCTIONS.relu.of),
  gelu_tanh: elementwise(FUNCTIONS.gelu_tanh.of),
  gelu_exact: elementwise(FUNCTIONS.gelu_exact.of),
  silu: elementwise((x, factor = 1) => (x / (1 + Math.exp(-x))) * factor),
  equal: elementwise((x, y) => x === y),
  not_equal: elementwise((x, y) => x !== y),
  less: elementwise((x, y) => x < y),
  less_equal: elementwise((x, y) => x <= y),
  greater: elementwise((x, y) => x > y),
  greater_equal: elementwise((x, y) => x >= y),
  logical_and: elementwise((x, y) => x && y),
  logical_not: elementwise((x) => !x),
  where: elementwise((condition, x, y) => (condition ? x : y)),

  sum: reduction((group) => group.reduce((sum, x) => sum + x, 0)),
  mean: reduction((group) => group.reduce((sum, x) => sum + x, 0) / group.length),
  max: reduction((group) => group.reduce((a, b) => Math.max(a, b))),
  softmax: ({ x, axis }) => grouped(x, axis, (group) => softmax(group)),
  cross_entropy({ logits, targets: { shape, values: targets }, ignore_index }) { // how unlikely the right class of each row is
    const width = logits.shape.at(-1);
    return filled(shape, (o) => {
      const row = logits.values.subarray(o * width, (o + 1) * width);
      const largest = row.reduce((a, b) => Math.max(a, b));
      const all = Math.log(row.reduce((sum, x) => sum + Math.exp(x - largest), 0)) + largest;
      return targets[o] === ignore_index ? 0 : all - row[targets[o]];
    });
  },
  cumsum: ({ x, axis }) => grouped(x, axis, (group) => group.forEach((value, i) => { group[i] = value + (i && group[i - 1]); })),
  layer_norm: (given) => norm(given, true),
  rms_norm: (given) => norm(given, false),

  full: ({ shape, value }) => filled(shape, () => value),
  arange: ({ start, stop }) => filled([stop - start], (o) => start + o),
  causal_mask: ({ queries, keys }) => filled([queries, keys], (o) => o % keys <= Math.floor(o / keys) + keys - queries),
  astype: ({ x, dtype }) => (dtype.startsWith("float") ? x : filled(x.shape, (o) => (dtype === "bool" ? x.values[o] !== 0 : Math.trunc(x.values[o])))),
  reshape({ x: { shape, values }, shape: asked }) {
    const left = -sizeOf(shape) / sizeOf(asked); // for the axis whose length is -1
    return { shape: asked.map((length) => (length === -1 ? left : length)), values };
  },
  broadcast_to({ x, shape }) {
    const [along] = broadcast(x.shape, shape).strides;
    return moved(x, shape, along);
  },
  transpose({ x, axes }) {
    const order = (axes ?? x.shape.map((_, axis) => -1 - axis)).map((axis) => (axis + x.shape.length) % x.shape.length);
    const strides = stridesOf(x.shape);
    return moved(x, order.map((axis) => x.shape[axis]), order.map((axis) => strides[axis]));
  },
  swapaxes({ x, axis1, axis2 }) {
    const order = [...x.shape.keys()];
    const [a, b] = [axis1, axis2].map((axis) => (axis + order.length) % order.length);
    [order[a], order[b]] = [b, a];
    return OPS.transpose({ x, axes: order });
  },
  getitem({ x, index }) {
    const parts = Array.isArray(index) ? index : [index];
    const used = parts.filter((part) => part !== null && part !== "...").length;
    const all = Array(x.shape.length - used).fill({ slice: [null, null, null] });
    const full = parts.includes("...") ? parts.flatMap((part) => (part === "..." ? all : [part])) : [...parts, ...all];
    const [shape, strides, old] = [[], [], stridesOf(x.shape)];
    let [start, axis] = [0, 0];
    for (const part of full) {
      const length = x.shape[axis];
      const within = (end) => Math.min(Math.max(end < 0 ? end + length : end, 0), length);
      if (part === null) [shape, strides].forEach((of) => of.push(Number(of === shape)));
      else if (typeof part === "number") start += (part < 0 ? part + length : part) * old[axis++];
      else {
        const [first, last, step] = part.slice;
        const begin = within(first ?? 0);
        shape.push(Math.max(0, Math.ceil((within(last ?? length) - begin) / (step ?? 1))));
        strides.push((step ?? 1) * old[axis]);
        start += begin * old[axis++];
      }
    }
    return moved(x, shape, strides, start);
  },
  concatenate({ arrays, axis }) {
    const at = (axis + arrays[0].shape.length) % arrays[0].shape.length;
    const shape = arrays[0].shape.map((length, i) => (i === at ? arrays.reduce((sum, x) => sum + x.shape[at], 0) : length));
    const values = new Float64Array(sizeOf(shape));
    for (let o = 0, i = 0; o < values.length; i++) {
      for (const x of arrays) {
        const width = sizeOf(x.shape.slice(at));
        values.set(x.values.subarray(i * width, (i + 1) * width), o);
        o += width;
      }
    }
    return { shape, values };
  },

  embedding({ weight: { shape: [, width], values }, ids }) {
    return filled([...ids.shape, width], (o) => values[ids.values[Math.floor(o / width)] * width + (o % width)]);
  },
  linear({ x, weight, bias }) {
    const [outputs, inputs] = weight.shape;
    const values = new Float64Array((x.values.length / inputs) * outputs);
    if (bias) for (let at = 0; at < values.length; at += outputs) values.set(bias.values, at);
    multiply(x.values, weight.values, values, outputs);
    return { shape: [...x.shape.slice(0, -1), outputs], values };
  },
  matmul({ x, y }) {
    const [[rows, inner], columns] = [x.shape.slice(-2), y.shape.at(-1)];
    const { shape, strides } = broadcast(x.shape.slice(0, -2), y.shape.slice(0, -2));
    const [i, j] = [indices(shape, strides[0]), indices(shape, strides[1])];
    return filled([...shape, rows, columns], (o) => {
      const [row, column] = [Math.floor(o / columns), o % columns];
      const first = (i[Math.floor(row / rows)] * rows + (row % rows)) * inner;
      const second = j[Math.floor(row / rows)] * inner * columns + column;
      let sum = 0;
      for (let k = 0; k < inner; k++) sum += x.values[first + k] * y.values[second + k * columns];
      return sum;
    });
  },
  rotate_pairs({ x, cosine, sine }) { // each pair of numbers, i and i + half, is turned by an angle
    const half = x.shape.at(-1) / 2;
    const rows = [...x.shape.slice(0, -1), 1];
    const [ofCosines, ofSines] = [cosine, sine].map(({ shape }) => indices(rows, broadcast(shape, [...rows.slice(0, -1), half]).strides[0]));
    const values = new Float64Array(x.values);
    ofCosines.forEach((first, row) => rotate(values.subarray(2 * row * half, 2 * (row + 1) * half), cosine.values, first, sine.values, ofSines[row]));
    return { shape: x.shape, values };
  },
  norm_and_rotate({ projected, query_weight, key_weight, num_heads, num_key_value_heads, eps, rotation }) {
    const heads = num_heads + 2 * num_key_value_heads;
    const width = projected.shape.at(-1) / heads;
    const values = new Float64Array(projected.values);
    for (let at = 0; at * width < values.length; at++) {
      const [head, row] = [at % heads, Math.floor(at / heads) % projected.shape[1]];
      if (head >= num_heads + num_key_value_heads) continue; // values stay as they are
      const part = values.subarray(at * width, (at + 1) * width);
      if (query_weight) normalize(part, false, head < num_heads ? query_weight : key_weight, null, eps);
      if (rotation) rotate(part, rotation.values, row * width, rotation.values, row * width + width / 2);
    }
    return { shape: projected.shape, values };
  },

  later_positions: ({ positions, count }, { cache }) => rowsOf(positions, cache.length, count),
  later_rotation: ({ rotary, length }, { cache }) => rowsOf(rotary, cache.length, length),
  /** The keys and values of all tokens, to which cached_attention writes those of the new ones. */
  reserve({ shape: [, heads, , width] }, { cache: { stored, capacity } }, { result }) {
    const make = () => new Float64Array(capacity * heads * width);
    if (!stored.has(result)) stored.set(result, { keys: make(), values: make(), heads, width });
    return stored.get(result);
  },
  cached_attention({ projected, stored: { keys, values, heads, width }, num_heads, is_causal }, { cache: { length: past }, see }, { module }) {
    const [, length, all] = projected.shape;
    const [ofKeys, ofQueries, end] = [heads * width, num_heads * width, past + length];
    for (let row = 0, first = ofQueries; row < length; row++, first += all) {
      keys.set(projected.values.subarray(first, first + ofKeys), (past + row) * ofKeys);
      values.set(projected.values.subarray(first + ofKeys, first + 2 * ofKeys), (past + row) * ofKeys);
    }
    const mixed = new Float64Array(length * ofQueries);
    const weights = new Float64Array(end);
    const seen = see && new Float64Array(num_heads * length * end);
    for (let row = 0; row < length; row++) {
      const stop = is_causal ? past + row + 1 : end;
      for (let head = 0; head < num_heads; head++) {
        const shared = Math.floor((head * heads) / num_heads) * width; // several heads may use the same keys
        weigh(projected.values, row * all + head * width, keys, shared, ofKeys, width, stop, weights);
        gather(values, shared, ofKeys, width, stop, weights, mixed, row * ofQueries + head * width);
        seen?.set(weights.subarray(0, stop), (head * length + row) * end);
      }
    }
    see?.(`${module}.weights`, [1, num_heads, length, end], seen);
    return { shape: [1, length, ofQueries], values: mixed };
  },
};

function rowsOf({ shape: [, width], values }, start, count) {
  return { shape: [count, width], values: values.subarray(start * width, (start + count) * width) };
}

/** Turn each pair of numbers of a head, i and i + half, by an angle. */
function rotate(head, cosines, ofCosines, sines, ofSines) {
  const half = head.length / 2;
  for (let i = 0; i < half; i++) {
    const first = head[i], second = head[i + half];
    const cosine = cosines[ofCosines + i], sine = sines[ofSines + i];
    head[i] = first * cosine - second * sine;
    head[i + half] = second * cosine + first * sine;
  }
}

/** Write how much a query attends to each key before `stop`, into `weights`. */
function weigh(queries, at, keys, shared, stride, width, stop, weights) {
  const scale = 1 / Math.sqrt(width);
  for (let place = 0; place < stop; place++) {
    const key = place * stride + shared;
    let score = 0;
    for (let i = 0; i < width; i++) score += queries[at + i] * keys[key + i];
    weights[place] = score * scale;
  }
  softmax(weights, 0, stop);
}

/** Add the values before `stop`, each as much as it weighs, to `mixed`. */
function gather(values, shared, stride, width, stop, weights, mixed, at) {
  for (let place = 0; place < stop; place++) {
    const weight = weights[place], first = place * stride + shared;
    for (let i = 0; i < width; i++) mixed[at + i] += weight * values[first + i];
  }
}

/** A forward pass of a recorded program of which every number is kept, its backward pass, and gradients by trying. */

import { CONSTANT, RULES } from "./rules.js";

/** What steps are called that are no modules, by the op and the last axis of what it computes. */
const NAMES = {
  "matmul key": "scores", "where key": "masked", "softmax key": "weights", "divide key": "weights", "matmul number": "heads",
  "reshape number": "joined", "add number": "sum",
};
const HEADS = ["queries", "keys", "values"];
const CHANGED = { rms_norm: "normed", layer_norm: "normed", rotate_pairs: "rotated", multiply: "scaled" };

/**
 * What a model computes for a text, from the ids to the loss.
 *
 * `arrays` are all arrays in order, each parameter before the first step that uses it: {name, kind, shape, axes, values, inputs,
 * formula, source: [file, line, text]}. Parameters and constants have no source. `loss` is one of the arrays, or null for a text of one
 * token. An array to which numbers are only moved is left out: who reads it reads the numbers where they were. But heads are shown, and
 * what is joined of them.
 */
export class Pass {
  /**
   * @param {Program} program that Python's recorded_numbers wrote. Throws Error for an op without a rule.
   * @param {number[]} ids of a text
   */
  constructor(program, ids) {
    const text = { shape: [1, ids.length], values: Float64Array.from(ids) };
    const steps = [];
    program.run({ ids: text }, { steps });
    this.steps = steps.filter(({ given, result }) => !Object.values(given).includes(result));
    this.constants = new Map([...program.constants].map(([name, array]) => [array, name.replace(/^constant_\d+$/, "constant")]));
    this.outputs = new Map(Object.entries(program.outputs).map(([name, value]) => [value, name]));
    this.arrays = [];
    this.shown = new Map(); // by the array of the program
    this.stepOf = new Map(); // by its result
    for (const step of this.steps) {
      Object.assign(step, { rule: this.sourcesOf(step.given).length ? ruleOf(step) : null, axes: axesOf(step.call.shape) });
      this.stepOf.set(step.result, step);
    }
    this.show(text, { name: "ids", kind: "constant", shape: [ids.length], axes: ["token"], inputs: [], formula: "the text, cut into tokens" });
    for (const step of this.steps) this.showStep(step);
    this.loss = this.arrays.find(({ name }) => name === "loss") ?? null;
  }

  show(raw, about) {
    let [name, count] = [about.name, 1];
    while (this.arrays.some((array) => array.name === name)) name = `${about.name}_${++count}`;
    const array = { ...about, name, values: raw.values, raw };
    this.arrays.push(array);
    this.shown.set(raw, array);
    return array;
  }

  /** Show what a step computes, and before it the parameters that it reads. */
  showStep(step) {
    const { call, given, result, rule, axes } = step;
    const read = this.sourcesOf(given);
    if (!rule || !result.values.length || read.some(({ values }) => !values.length) || (rule.from && !this.isReordered(step))) return;
    const inputs = [...new Set(read)].map((raw) => this.shown.get(raw) ?? this.showConstant(raw));
    const shape = axes[0] ? result.shape.slice(-axes.length) : [1];
    this.show(result, { name: this.nameOf(step, inputs), kind: call.op, shape, axes, inputs, formula: rule.formula, source: call.source });
  }

  showConstant(raw) {
    const name = this.constants.get(raw);
    const isTable = name === "constant";
    const axes = raw.shape.length === 1 ? ["number"] : isTable || name.includes("embedding") ? ["id", "number"] : ["output", "input"];
    return this.show(raw, { name, kind: isTable ? "constant" : "parameter", shape: raw.shape, axes, inputs: [], formula: "the same for all texts" });
  }

  /** The arrays that are shown, or constants, from which what a call got was moved. */
  sourcesOf(given) {
    return Object.values(given).flat().filter((x) => x?.values).flatMap((raw) => {
      const { rule, given: earlier } = this.stepOf.get(raw) ?? {};
      return this.shown.has(raw) || rule === undefined ? raw : rule?.from ? this.sourcesOf(earlier) : rule ? raw : [];
    });
  }

  /** Whether a step that only moves numbers makes heads of a row for each token, or joins them, and is the last that does. */
  isReordered({ result, axes, rule }) {
    const [origin] = this.originOf(...rule.from(0));
    const isLater = (raw) => this.steps.some((step) => step.rule?.from && Object.values(step.given).flat().includes(raw) && (isOfTokens(step.axes) || isLater(step.result)));
    return isOfTokens(axes) && this.stepOf.has(origin) && this.stepOf.get(origin).axes.length !== axes.length && !isLater(result);
  }

  /** The number [array, i] from which one was moved: of an array that is shown, a constant or one without gradients. */
  originOf(raw, i) {
    while (!this.shown.has(raw) && this.stepOf.get(raw)?.rule?.from) [raw, i] = this.stepOf.get(raw).rule.from(i);
    return [raw, i];
  }

  nameOf({ call: { op, module, ends, result }, given, axes, rule }, inputs) {
    const layer = ends.find((name) => /\.\d+$/.test(name));
    const around = module.replace(/\.?dropout$/, "");
    if (this.outputs.has(result) || layer) return this.outputs.get(result) ?? layer;
    if (ends[0] === around) return around;
    const isOfHeads = axes.includes("head");
    const [whose] = inputs[0].name.split(".").at(-1).split("_");
    let label = NAMES[`${op} ${axes.at(-1)}`] ?? op;
    if (rule.from && isOfHeads) label = HEADS.find((name) => !this.arrays.some((array) => array.name === `${around}.${name}`)) ?? "heads";
    else if (op === "multiply" ? typeof given.y === "number" : CHANGED[op] && isOfHeads) label = HEADS.includes(whose) ? `${whose}_${CHANGED[op]}` : CHANGED[op];
    return around ? `${around}.${label}` : label;
  }

  /** Where a number of an array that a step computed comes from: see rules.js. Each factor is [array, place], and its array is shown. */
  explain({ raw }, place) {
    const { terms, lines, ...others } = this.stepOf.get(raw).rule.explain(place);
    const shown = ({ factors = [], times = 1, ...about }) => {
      const numbers = factors.map(([x, i]) => [...this.originOf(x, i), x.values[i]]);
      const seen = numbers.filter(([x]) => this.shown.has(x)).map(([x, i]) => [this.shown.get(x), i]);
      return { ...about, factors: seen, times: numbers.reduce((product, [x, , value]) => (this.shown.has(x) ? product : product * value), times) };
    };
    return { ...others, terms: terms.map(shown), lines: lines.map(shown) };
  }

  /**
   * The gradients of the loss by the chain rule, from the last step to the first.
   * @returns {Map<object, Float64Array>} for each array, parameters among them, as many numbers as it has
   */
  gradients() {
    const all = [...this.constants.keys(), ...this.shown.keys(), ...this.stepOf.keys()];
    const gradients = new Map(all.map((raw) => [raw, new Float64Array(raw.values.length)]));
    gradients.get(this.loss.raw)[0] = 1;
    for (const { rule, result } of [...this.steps].reverse()) {
      const gradient = gradients.get(result);
      if (rule?.backward) rule.backward(gradient, gradients);
      else gradient.forEach((g, o) => g && rule?.partials(o, (x, i, partial) => { if (gradients.has(x)) gradients.get(x)[i] += g * partial; }));
    }
    for (const [raw, array] of this.shown) gradients.set(array, gradients.get(raw));
    return gradients;
  }

  /**
   * Where the gradient of a number comes from: the numbers that were computed from it, each with its own gradient, and how much it
   * changes with this number (the partial derivative). A term is the product of both.
   * @returns {{step: object, o: number, gradient: number, partial: number, value: number}[]}
   */
  gradientTerms(gradients, array, place) {
    const terms = [];
    for (const step of this.arrays.filter(({ inputs }) => inputs.includes(array))) {
      const { rule } = this.stepOf.get(step.raw);
      gradients.get(step).forEach((gradient, o) => {
        if (gradient) rule.partials(o, (x, i, partial) => {
          const [raw, at] = this.originOf(x, i);
          if (raw === array.raw && at === place) terms.push({ step, o, gradient, partial, value: gradient * partial });
        });
      });
    }
    return terms;
  }

  /**
   * The gradient of a number without the chain rule: make the number a little larger and a little smaller, compute all that follows
   * from it, and see how the loss changes (the central difference).
   * @returns {{step: number, above: number, below: number, slope: number}} the step, both losses, and their difference by 2 steps
   */
  finiteDifference(array, place) {
    const value = array.values[place];
    const step = 1e-5 * Math.max(1, Math.abs(value));
    const [above, below] = [this.lossWith(array, place, value + step), this.lossWith(array, place, value - step)];
    return { step, above, below, slope: (above - below) / (2 * step) };
  }

  /** The loss where one number of an array is another one: only what depends on it is computed again. */
  lossWith({ raw }, place, value) {
    const values = Float64Array.from(raw.values);
    values[place] = value;
    const others = new Map([[raw, { ...raw, values }]]);
    const other = (x) => (Array.isArray(x) ? x.map(other) : (others.get(x) ?? x));
    for (const { call, given, result } of this.steps) {
      const changed = Object.fromEntries(Object.entries(given).map(([name, x]) => [name, other(x)]));
      const isChanged = Object.values(given).flat().some((x) => others.has(x));
      if (isChanged) others.set(result, call.compute(changed, {}, call));
    }
    return other(this.loss.raw).values[0];
  }
}

/** The rule of a step; null if no gradients flow through it. */
function ruleOf({ call: { op }, given, result }) {
  if (CONSTANT.has(op)) return null;
  if (!Object.hasOwn(RULES, op)) throw new Error(`there are no derivatives of ${op} here`);
  return RULES[op](given, result);
}

/** The axes of what a call computes, by its shape, whose sizes are objects where they depend on the text; without that of the batch. */
function axesOf(shape) {
  const sizes = shape[0] === 1 ? shape.slice(1) : shape;
  const ofTokens = sizes.filter((size) => typeof size === "object").length > 1 ? ["query", "key"] : ["token"];
  const axes = sizes.map((size, i) => (typeof size === "object" ? ofTokens.shift() : i < sizes.length - 1 ? "head" : "number"));
  return axes.length ? axes : [""];
}

/** Whether an array with such axes is a row for each token, or one for each head and token. */
function isOfTokens(axes) {
  return ["token,number", "head,token,number"].includes(axes.join());
}

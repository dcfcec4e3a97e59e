/**
 * Runs a program that tinyformer recorded from the `forward` of a model: a list of calls of ops, whose functions are in ops.js.
 * tinyformer/export/javascript.py writes such programs.
 */

import { OPS } from "./ops.js";

/** A program with its constants, such as the weights of a model. */
export class Program {
  /**
   * @param {object} description as program.py writes it
   * @param {Map<string, {shape: number[], values: ArrayLike<number>}>} constants by name
   *   Throws Error if one is missing or of another shape than the program needs, and for an op that is not known here.
   */
  constructor({ inputs, constants, outputs, calls }, arrays) {
    Object.assign(this, { inputs, outputs, constants: new Map(), known: [] });
    for (const [name, { value, shape }] of Object.entries(constants)) {
      const array = arrays.get(name);
      if (!array) throw new Error(`the file does not have the weights ${name}`);
      if (String(array.shape) !== String(shape)) throw new Error(`the weights ${name} are (${array.shape}): the program needs (${shape})`);
      this.constants.set(name, (this.known[value] = { ...array }));
    }
    this.calls = calls.map((call, i) => ({ ...call, ends: endsOf(call.module, calls[i + 1]?.module), ...compiled(call, this.known) }));
    this.isCached = calls.some(({ op }) => op === "reserve");
  }

  /**
   * @param {Object<string, {shape: number[], values: ArrayLike<number>}>} inputs by name
   * @param {{cache?: Cache, see?: (name: string, shape: number[], values: Float64Array) => void, steps?: object[]}} [options]
   *   see: is shown what each module of the model computes, by the module's name, and the weights of attention with a cache
   *   steps: gets each call with the arguments and the result of this run
   * @returns {Object<string, {shape: number[], values: Float64Array}>} the outputs by name
   */
  run(inputs, { cache = null, see = null, steps = null } = {}) {
    const values = this.known.slice();
    const run = { values, cache, see, sizes: { past: cache?.length } };
    for (const [name, { value, shape }] of Object.entries(this.inputs)) {
      values[value] = inputs[name];
      shape.forEach((size, axis) => bind(run.sizes, size, inputs[name].shape[axis]));
    }
    for (const call of this.calls) {
      for (const [name, get] of call.computed) call.given[name] = get(run);
      const { shape, values: numbers } = (values[call.result] = call.compute(call.given, run, call));
      steps?.push({ call, given: { ...call.given }, result: values[call.result] });
      if (see) call.ends.forEach((name) => see(name, shape, numbers));
    }
    return Object.fromEntries(Object.entries(this.outputs).map(([name, value]) => [name, values[value]]));
  }
}

/** The function that computes a call, the arguments that are `given` to it, and what gives those of them that each run computes. */
function compiled({ op, arguments: described }, known) {
  if (!Object.hasOwn(OPS, op)) throw new Error(`there is no op ${op}: this page is older than the file`);
  const [given, computed] = [{}, []];
  for (const [name, argument] of Object.entries(described)) {
    given[name] = known[argument?.value] ?? (isPlain(argument) ? argument : null);
    if (!isPlain(argument) && !given[name]) computed.push([name, getter(argument)]);
  }
  return { compute: OPS[op], given, computed };
}

/** Whether JSON holds the argument itself. */
function isPlain(argument) {
  return Array.isArray(argument) ? argument.every(isPlain) : argument === null || typeof argument !== "object";
}

/** The function (run) that gives an argument: numbers of sizes and values are known only while the program runs. */
function getter(argument) {
  if (isPlain(argument)) return () => argument;
  if (Array.isArray(argument)) {
    const parts = argument.map(getter);
    return (run) => parts.map((part) => part(run));
  }
  const { value, constant, factors, slice, float } = argument;
  if (value !== undefined) return ({ values }) => values[value];
  if (factors) {
    const terms = Object.entries(factors);
    return ({ sizes }) => terms.reduce((sum, [name, factor]) => sum + factor * sizes[name], constant);
  }
  if (float) return () => Number(float);
  const ends = getter(slice);
  return (run) => ({ slice: ends(run) });
}

/** Find the size that makes an axis of an input as long as it is. */
function bind(sizes, size, length) {
  if (typeof size === "number") return;
  const [[name, factor]] = Object.entries(size.factors);
  sizes[name] = (length - size.constant) / factor;
}

/** The modules whose last call this is: those around it that are not around the next one, the inner ones first. */
function endsOf(module, next = "") {
  const around = (name) => name.split(".").map((_, i, parts) => parts.slice(0, i + 1).join("."));
  return around(module).filter((name) => name && !around(next).includes(name)).reverse();
}

/** The keys and values of all tokens so far, so that each is computed once. */
export class Cache {
  constructor(capacity) {
    Object.assign(this, { capacity, length: 0, stored: new Map(), ids: [] });
  }

  /** Keep the first tokens, and forget those after them. */
  keep(count) {
    this.length = Math.min(count, this.length);
  }
}

/** The backward pass: how much the loss changes with each number of a recorded pass, and the same by trying. */

import { KINDS, computed, passBack } from "./kinds.js";

/**
 * The gradients of the loss by the chain rule, from the last step to the first.
 * @param {{arrays: object[], loss: object}} pass as record() gives it
 * @returns {Map<object, Float64Array>} for each array, parameters among them, as many numbers as it has
 */
export function backward({ arrays, loss }) {
  const gradients = new Map(arrays.map((array) => [array, new Float64Array(array.values.length)]));
  gradients.get(loss)[0] = 1;
  for (const step of [...arrays].reverse()) {
    if (!KINDS[step.kind]) continue; // a parameter comes from nothing
    passBack(step, gradients.get(step), step.inputs.map((input) => gradients.get(input)));
  }
  return gradients;
}

/**
 * Where the gradient of a number comes from: the numbers that were computed from it, each with its own gradient, and how much it
 * changes with this number (the partial derivative). A term is the product of both.
 * @returns {{step: object, o: number, gradient: number, partial: number, value: number}[]}
 */
export function gradientTerms({ arrays }, gradients, array, place) {
  const terms = [];
  for (const step of arrays.filter(({ inputs }) => inputs.includes(array))) {
    gradients.get(step).forEach((gradient, o) => {
      KINDS[step.kind].partials(step, o, (k, i, partial) => {
        if (i === place && step.inputs[k] === array) terms.push({ step, o, gradient, partial, value: gradient * partial });
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
export function finiteDifference(pass, array, place) {
  const value = array.values[place];
  const step = 1e-5 * Math.max(1, Math.abs(value));
  const [above, below] = [lossWith(pass, array, place, value + step), lossWith(pass, array, place, value - step)];
  return { step, above, below, slope: (above - below) / (2 * step) };
}

/** The loss where one number of an array is another one: only what depends on it is computed again. */
function lossWith({ arrays, loss }, array, place, value) {
  const values = Float64Array.from(array.values);
  values[place] = value;
  const others = new Map([[array, { ...array, values }]]);
  for (const step of arrays) {
    if (step === array || !step.inputs.some((input) => others.has(input))) continue;
    others.set(step, computed({ ...step, inputs: step.inputs.map((input) => others.get(input) ?? input) }));
  }
  return (others.get(loss) ?? loss).values[0];
}

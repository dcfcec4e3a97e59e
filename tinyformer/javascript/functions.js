/** The activations: the function of one number, its slope, and its formula. */

const ROOT = Math.sqrt(2 / Math.PI);
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const bell = (x) => Math.exp((-x * x) / 2) / Math.sqrt(2 * Math.PI);

/** The probability that a normal number is below x, to all digits: a series whose terms are all of one sign. */
function below(x) {
  if (Math.abs(x) > 9) return x > 0 ? 1 : 0;
  let [term, sum] = [x, x];
  for (let n = 3; Math.abs(term) > 1e-17 * Math.abs(sum); n += 2) sum += term *= (x * x) / n;
  return 0.5 + bell(x) * sum;
}

const inner = (x) => Math.tanh(ROOT * (x + 0.044715 * x * x * x));

export const FUNCTIONS = {
  relu: { of: (x) => Math.max(0, x), slope: (x) => (x > 0 ? 1 : 0), formula: "max(0, x)" },
  gelu_tanh: {
    of: (x) => 0.5 * x * (1 + inner(x)),
    slope: (x) => 0.5 * (1 + inner(x)) + 0.5 * x * (1 - inner(x) ** 2) * ROOT * (1 + 3 * 0.044715 * x * x),
    formula: "½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))",
  },
  gelu_exact: {
    of: (x) => x * below(x),
    slope: (x) => below(x) + x * bell(x),
    formula: "x × the normal probability below x",
  },
  silu: {
    of: (x) => x * sigmoid(x),
    slope: (x) => sigmoid(x) * (1 + x * (1 - sigmoid(x))),
    formula: "x ÷ (1 + e^−x)",
  },
};

/**
 * The product of a linear layer: nearly all of a pass is spent here. Four outputs at a time use each number of x once it is there,
 * and their sums do not wait for each other.
 * @param {ArrayLike<number>} x (rows, inputs), one row after the other
 * @param {ArrayLike<number>} weight (outputs, inputs)
 * @param {ArrayLike<number>} bias (outputs), at which the sums begin
 * @param {Float32Array|Float64Array} y (rows, outputs), which is written
 */
export function multiply(x, weight, bias, y) {
  const outputs = bias.length;
  const inputs = weight.length / outputs;
  const last = outputs - 1;
  for (let start = 0, out = 0; start < x.length; start += inputs, out += outputs) {
    for (let first = 0; first < outputs; first += 4) {
      const second = Math.min(first + 1, last); // behind the last output it is computed again
      const third = Math.min(first + 2, last);
      const fourth = Math.min(first + 3, last);
      const [p, q, r, s] = [first * inputs, second * inputs, third * inputs, fourth * inputs];
      let [a, b, c, d] = [bias[first], bias[second], bias[third], bias[fourth]];
      for (let i = 0; i < inputs; i++) {
        const value = x[start + i];
        a += value * weight[p + i];
        b += value * weight[q + i];
        c += value * weight[r + i];
        d += value * weight[s + i];
      }
      y[out + first] = a;
      y[out + second] = b;
      y[out + third] = c;
      y[out + fourth] = d;
    }
  }
}

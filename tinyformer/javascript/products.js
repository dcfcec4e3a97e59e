/**
 * The product of a linear layer: nearly all of a pass is spent here. Eight outputs at a time use each number of x once it is there,
 * and their sums do not wait for each other.
 * @param {ArrayLike<number>} x (rows, inputs), one row after the other
 * @param {ArrayLike<number>} weight (outputs, inputs)
 * @param {Float64Array} y (rows, outputs), to which the products are added
 * @param {number} outputs
 */
export function multiply(x, weight, y, outputs) {
  const inputs = weight.length / outputs;
  const last = outputs - 1;
  for (let start = 0, out = 0; start < x.length; start += inputs, out += outputs) {
    for (let first = 0; first < outputs; first += 8) {
      const j = Math.min(first + 1, last), k = Math.min(first + 2, last); // behind the last output it is computed again
      const l = Math.min(first + 3, last), m = Math.min(first + 4, last), n = Math.min(first + 5, last);
      const o = Math.min(first + 6, last), p = Math.min(first + 7, last);
      const ofA = first * inputs, ofB = j * inputs, ofC = k * inputs, ofD = l * inputs;
      const ofE = m * inputs, ofF = n * inputs, ofG = o * inputs, ofH = p * inputs;
      let a = y[out + first], b = y[out + j], c = y[out + k], d = y[out + l];
      let e = y[out + m], f = y[out + n], g = y[out + o], h = y[out + p];
      for (let i = 0; i < inputs; i++) {
        const value = x[start + i];
        a += value * weight[ofA + i];
        b += value * weight[ofB + i];
        c += value * weight[ofC + i];
        d += value * weight[ofD + i];
        e += value * weight[ofE + i];
        f += value * weight[ofF + i];
        g += value * weight[ofG + i];
        h += value * weight[ofH + i];
      }
      y[out + first] = a, y[out + j] = b, y[out + k] = c, y[out + l] = d;
      y[out + m] = e, y[out + n] = f, y[out + o] = g, y[out + p] = h;
    }
  }
}

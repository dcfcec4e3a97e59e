/** A page that runs any recorded model: a field for each input, and the outputs. */

const SHOWN = 4000; // characters of an output

/**
 * Fill an element with fields for the inputs, as nested arrays in JSON, and show the outputs. Scripts call `model.run(inputs)`.
 * @param {HTMLElement} element
 * @param {Program} program of program.js
 */
export function showProgram(element, program) {
  const make = (tag, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  };
  const inputs = Object.entries(program.inputs);
  const fields = inputs.map(([, { shape }]) => make("textarea", { rows: 4, spellcheck: false, value: JSON.stringify(zeros(shape)) }));
  const labels = inputs.map(([name, { shape }], i) => make("label", {}, `${name} (${shape.map(nameOf).join(", ")})`, fields[i]));
  const [results, button] = [make("div", { role: "status" }), make("button", { type: "button", textContent: "Run" })];
  button.onclick = () => {
    try {
      const outputs = runProgram(program, Object.fromEntries(inputs.map(([name], i) => [name, JSON.parse(fields[i].value)])));
      results.replaceChildren(...Object.entries(outputs).flatMap(([name, x]) => {
        const text = JSON.stringify(x, (_, number) => (typeof number === "number" ? Number(number.toPrecision(5)) : number)).replaceAll("],[", "],\n[");
        return [make("h2", { textContent: `${name} (${shapeOf(x).join(", ")})` }), make("pre", { style: "white-space: pre-wrap", textContent: text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text })];
      }));
    } catch (error) {
      results.replaceChildren(make("p", { textContent: error.message }));
    }
  };
  element.classList.add("livegpt");
  element.replaceChildren(...labels, make("div", { className: "controls" }, button), results);
  globalThis.model = { run: (given) => runProgram(program, given) };
  button.click();
}

/** The outputs by name for inputs by name, as nested arrays. Throws Error for an input of another shape than the model takes. */
function runProgram(program, given) {
  const arrays = {};
  for (const [name, { shape }] of Object.entries(program.inputs)) {
    arrays[name] = { shape: shapeOf(given[name]), values: [given[name]].flat(Infinity).map(Number) };
    const fits = arrays[name].shape.length === shape.length && shape.every((size, i) => typeof size === "object" || size === arrays[name].shape[i]);
    const count = arrays[name].shape.reduce((product, length) => product * length, 1);
    if (!fits || count !== arrays[name].values.length || arrays[name].values.some(Number.isNaN)) throw new Error(`${name} must be numbers of shape (${shape.map(nameOf).join(", ")}), got shape (${arrays[name].shape.join(", ")})`);
  }
  return Object.fromEntries(Object.entries(program.run(arrays)).map(([name, x]) => [name, nested(x.shape, x.values)]));
}

const nameOf = (size) => (typeof size === "object" ? Object.keys(size.factors)[0] : size);
const shapeOf = (x) => (Array.isArray(x) ? [x.length, ...shapeOf(x[0])] : []);
const zeros = ([size, ...others]) => (size === undefined ? 0 : Array.from({ length: typeof size === "object" ? 3 : size }, () => zeros(others)));
const nested = ([length, ...others], values) => (length === undefined ? values[0] : Array.from({ length }, (_, i) => nested(others, values.subarray((i * values.length) / length, ((i + 1) * values.length) / length))));

/** What is told about one number of a forward pass: the terms that it is the sum of, the formula, and the line of source. */

import { element, visible } from "./text.js";

const FEW = 12; // terms that are told at first

/** A number with so many digits: "0.12346", "−1.2e−7". */
export function brief(x, digits = 6) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x < 0 ? "−∞" : "∞";
  const size = Math.abs(x);
  const text = x !== 0 && (size < 1e-3 || size >= 1e6) ? x.toExponential(digits - 1).replace(/\.?0+e/, "e") : String(Number(x.toPrecision(digits)));
  return text.replaceAll("-", "−").replace("e+", "e");
}

/** The indices of a place in an array, as Python writes them: "[2, 5, 17]". */
export function indicesOf({ shape }, place) {
  const found = [];
  for (const size of [...shape].reverse()) {
    found.unshift(place % size);
    place = Math.floor(place / size);
  }
  return found;
}

/** A cell in words: "head 2, token 5 “x”, number 17", each counted from 0. */
export function cellInWords(array, place, texts) {
  const isText = new Set(["token", "query", "key"]);
  const words = indicesOf(array, place).map((index, i) => {
    const axis = array.axes[i];
    if (!axis) return "";
    if (array.vocabulary && (axis === "id" || (axis === "number" && array.axes[0] !== "id"))) return `token ${index} “${visible(array.vocabulary[index])}”`;
    return isText.has(axis) && index < texts.length ? `${axis} ${index} “${visible(texts[index])}”` : `${axis} ${index}`;
  });
  return words.filter(Boolean).join(", ");
}

/** The cells that a number was read from, or in the backward pass those that read it: [[array, place]], in order. */
export function cellsBehind(pass, gradients, array, place) {
  const found = gradients ? pass.gradientTerms(gradients, array, place).map(({ step, o }) => [step, o]) : termsOf(pass, array, place).flatMap(({ factors }) => factors);
  const order = new Map(pass.arrays.map((one, i) => [one, i]));
  return found.sort(([a, i], [b, j]) => order.get(a) - order.get(b) || i - j);
}

function termsOf(pass, array, place) {
  if (!array.source) return [];
  const { terms, lines } = pass.explain(array, place);
  return [...terms, ...lines];
}

/**
 * Tell about a cell.
 * @param {HTMLElement} box gets it
 * @param {object} given
 * @param {Pass} given.pass
 * @param {Map<object, Float64Array>|null} given.gradients to tell about the gradient
 * @param {object} given.array
 * @param {number} given.place
 * @param {string[]} given.texts of the tokens
 * @param {(array: object, place: number) => void} given.go to another cell
 * @param {boolean} given.isWhole whether all terms are told at once
 */
export function drawCell(box, given) {
  const { gradients, array, place, texts } = given;
  const value = array.values[place];
  const name = element("h3", { id: "numbers-name", tabIndex: -1 }, array.name, element("span", { class: "shape" }, ` ${array.shape.join(" × ")}`));
  const where = element("p", { class: "note" }, cellInWords(array, place, texts));
  const number = element("p", { class: "value" }, `[${indicesOf(array, place).join(", ")}] = `, element("output", { id: "numbers-value" }, brief(value, 8)));
  const parts = gradients ? backwardParts(given) : forwardParts(given);
  box.replaceChildren(name, where, number, ...parts, ...sourceOf(array));
}

function forwardParts({ pass, array, place, go, texts, isWhole }) {
  if (array.kind === "parameter") return [element("p", {}, "A parameter: training has found it.")];
  if (array.kind === "constant") return [formulaOf(array)];
  const { first, each, terms, lines } = pass.explain(array, place);
  const rows = terms.map(({ factors, times, value }) => {
    const numbers = factors.map(([input, i]) => ({ array: input, place: i, value: input.values[i] }));
    return { numbers, constant: times, value };
  });
  const total = terms.reduce((sum, { value }) => sum + value, 0);
  const sum = `sum of ${terms.length === 1 ? "1 term" : `${terms.length} terms`}`;
  return [
    formulaOf(array),
    ...first.map((one) => line(one)),
    termTable({ rows, each, go, texts, isWhole }),
    ...(lines.length && !each ? [] : [line({ text: sum, value: total }, "total")]),
    ...lines.map((one) => line(one)),
  ];
}

function backwardParts(given) {
  const { pass, gradients, array, place, go, texts, isWhole } = given;
  const gradient = gradients.get(array)[place];
  const said = element("p", { class: "value" }, "∂loss ÷ ∂this = ", element("output", { id: "numbers-gradient" }, brief(gradient, 8)));
  if (array.kind === "constant") return [said, element("p", {}, "Nothing can change it.")];
  const rows = pass.gradientTerms(gradients, array, place).map(({ step, o, gradient: g, partial, value }) => ({
    numbers: [{ array: step, place: o, value: g }],
    constant: partial,
    value,
  }));
  const ends = array === pass.loss ? "It is the loss itself." : rows.length ? "" : "The loss does not depend on it.";
  const table = rows.length
    ? [element("p", { class: "formula" }, "Σ (gradient of what reads it) × (∂ of that ÷ ∂this)"), termTable({ rows, each: "", go, texts, isWhole }), line({ text: `sum of ${rows.length === 1 ? "1 term" : `${rows.length} terms`}`, value: rows.reduce((sum, { value }) => sum + value, 0) }, "total")]
    : [element("p", {}, ends)];
  return [said, ...table, tryIt(pass, array, place, gradient)];
}

/** A button that computes the gradient by trying. */
function tryIt(pass, array, place, gradient) {
  const box = element("div", { class: "tried", role: "status" });
  const button = element("button", { type: "button", id: "numbers-try" }, "Finite difference");
  button.addEventListener("click", () => {
    const { step, above, below, slope } = pass.finiteDifference(array, place);
    const off = Math.abs(slope - gradient);
    box.replaceChildren(
      line({ text: `loss with ${brief(step, 2)} more`, value: above }, "", 11),
      line({ text: `loss with ${brief(step, 2)} less`, value: below }, "", 11),
      line({ text: `difference ÷ ${brief(2 * step, 2)}`, value: slope }, "total"),
      line({ text: "away from the gradient by", value: off }, "", 2),
    );
    box.dataset.slope = slope;
  });
  const note = element("p", { class: "note" }, "Changes this value slightly in both directions, and recomputes everything that depends on it.");
  return element("div", {}, button, note, box);
}

/** The terms, the largest first; a few of them until all are asked for. `each` says what a term is where it is no product. */
function termTable({ rows, each, go, texts, isWhole }) {
  const sorted = rows.map((row, i) => ({ ...row, i })).sort((a, b) => Math.abs(b.value) - Math.abs(a.value) || a.i - b.i);
  const body = element("tbody");
  const show = (count) => body.replaceChildren(...sorted.slice(0, count).map((row) => element("tr", {},
    element("td", { class: "number" }, brief(row.value, 5)),
    element("td", {}, ...product(row, go, texts), element("span", { class: "names" }, row.numbers.map(({ array, place }) => shortName(array, place)).join(" · "))))));
  const first = isWhole ? rows.length : FEW;
  show(first);
  const head = element("thead", {}, element("tr", {}, element("th", { scope: "col" }, each || "term"), element("th", { scope: "col" }, each ? "x" : "its numbers")));
  const table = element("table", { class: isWhole ? "terms whole" : "terms", "aria-label": "Terms, the largest first" }, head, body);
  if (rows.length <= first) return element("div", {}, table);
  const others = sorted.slice(FEW).reduce((sum, { value }) => sum + value, 0);
  const more = element("button", { type: "button", class: "link" }, `and ${rows.length - FEW} smaller ones, together ${brief(others, 5)}: show all`);
  more.addEventListener("click", () => {
    show(rows.length);
    table.classList.add("whole");
    more.remove();
    body.rows[FEW].querySelector("button")?.focus(); // which comes after those that were there
  });
  return element("div", {}, table, more);
}

/** The numbers of a term, each of which leads to its cell, and the constant by which they are multiplied. */
function product({ numbers, constant }, go, texts) {
  const parts = numbers.map(({ array, place, value }) => {
    const button = element("button", { type: "button", class: "link number", title: cellInWords(array, place, texts) }, brief(value, 4));
    button.setAttribute("aria-label", `${brief(value, 4)}: go to ${array.name}[${indicesOf(array, place).join(", ")}]`);
    button.addEventListener("click", () => go(array, place));
    return button;
  });
  if (constant !== 1 || !numbers.length) parts.push(element("span", { class: "number" }, brief(constant, 4)));
  return parts.flatMap((one, i) => (i ? [" × ", one] : [one]));
}

function shortName(array, place) {
  return `${array.name.split(".").slice(array.kind === "parameter" ? -2 : -1).join(".")}[${indicesOf(array, place).join(", ")}]`;
}

/** What is computed, and the number that it gives. */
function line({ text, value }, kind = "", digits = 6) {
  return element("p", { class: `sum ${kind}` }, element("span", {}, text), element("span", { class: "number" }, brief(value, digits)));
}

function formulaOf({ formula }) {
  return element("p", { class: "formula" }, formula);
}

/** The line of Python that computes the array. */
function sourceOf({ source }) {
  if (!source) return [];
  const [file, number, text] = source;
  return [element("figure", { class: "source" }, element("figcaption", {}, `${file}:${number}`), element("code", {}, text))];
}

/** Tokens as text on the page, and numbers as people read them. Text from the model or the user is only ever textContent. */

/**
 * An element.
 * @param {string} name such as "div"
 * @param {object} [properties] of the element; "class" is its class
 * @param {...(Node|string)} children strings become text
 */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

/** A line of a view, whose details are behind a question mark. */
export function about(line, details) {
  return element("div", { class: "note about" }, element("span", {}, line), " ", element("details", {}, element("summary", { "aria-label": "Help" }, "?"), element("p", {}, details)));
}

/** A number of things, such as "1 token" and "2,000 tokens"; with "several" where the plural has no mere s. */
export function counted(count, what, several = `${what}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? what : several}`;
}

const ROUNDING = 1e-6; // of sums and differences of numbers in float32
const SIGNS = { "\n": "↵", "\t": "→", "\r": "␍", " ": "␣", "": "∅" };

/** A token in one line, with signs for what cannot be seen: "↵" for a new line, "␣" for a space alone or at an end. */
export function visible(text) {
  if (Object.hasOwn(SIGNS, text)) return SIGNS[text]; // a token may be called "constructor"
  return text.replace(/[\n\t\r]/g, (sign) => SIGNS[sign]).replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
}

/** A token with its place, which is told from 1 on: "“fox” (place 3)". */
export function placed(text, place) {
  return `“${visible(text)}” (position ${place + 1})`;
}

/** A probability as a percentage with three digits or so: "12.3 %", "0.045 %". */
export function percent(p) {
  const value = 100 * p;
  if (value === 0) return "0 %";
  if (value >= 99.95) return p === 1 ? "100 %" : "> 99.9 %";
  return `${value >= 10 ? value.toFixed(1) : value >= 1 ? value.toFixed(2) : value.toPrecision(2)} %`;
}

/** A number with three digits after the point. */
export function number(x) {
  return x === null || x === undefined ? "–" : x.toFixed(3);
}

/** The same. A number above 0 that would look like 0 keeps two of its digits. */
export function small(x) {
  return x === 0 || x >= 0.0005 ? number(x) : x.toExponential(1);
}

/** A number with its sign, as of what is added: "+1.250", "−0.300", "+3.2e-4". What is less than ROUNDING is 0. */
export function signed(x) {
  const size = Math.abs(x) < ROUNDING ? 0 : Math.abs(x);
  return `${size === 0 ? "" : x > 0 ? "+" : "−"}${small(size)}`;
}

/**
 * The colour between the paper (0) and the strongest colour (1), as CSS. It follows light and dark.
 * @param {number} x from 0 to 1
 */
export function shade(x) {
  return `rgba(var(--high), ${Math.max(0, Math.min(1, x)).toFixed(3)})`;
}

/**
 * What gives black or white, whichever is read better on a colour of a strength from 0 to 1, as shade() takes it. It knows the
 * colours as they are when it is made: make a new one for each drawing.
 * @param {string} [strongest] the variable of the strongest colour
 * @returns {(x: number) => string}
 */
export function inks(strongest = "--high") {
  const style = getComputedStyle(document.documentElement);
  const [low, high] = ["--low", strongest].map((name) => style.getPropertyValue(name).split(",").map(Number));
  return (x) => {
    const [red, green, blue] = low.map((from, i) => linear((from + (high[i] - from) * Math.max(0, Math.min(1, x))) / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff"; // there both have a contrast of 4.6 (WCAG 2.1)
  };
}

function linear(value) {
  return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
}

/**
 * @returns {[HTMLElement, (message: string) => void]} the line, and what says a message in it. "" hides it again.
 */
export function troubleLine() {
  const line = element("p", { class: "trouble", role: "alert", hidden: true });
  return [line, (message) => {
    line.textContent = message;
    line.hidden = !message;
  }];
}

/** Whether a button does something. */
export function able(button, is) {
  button.setAttribute("aria-disabled", String(!is));
}

/** Let a button act where it does something. */
export function onPress(button, act) {
  button.addEventListener("click", () => button.getAttribute("aria-disabled") === "true" || act());
}

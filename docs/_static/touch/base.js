// What the pictures that can be touched have in common. A page names one by <div class="touch" data-touch="NAME">, and the site
// loads NAME.js for it. Without JavaScript the page shows a still picture of the same around it, or what touch.py puts there.
"use strict";

window.touch = {
  // Whoever knows how to fill the places of this name.
  fill(name, make) {
    document.addEventListener("DOMContentLoaded", () => {
      for (const place of document.querySelectorAll(`[data-touch="${name}"]`)) make(place);
    });
  },

  // An element of HTML with attributes, which holds texts and elements.
  element(name, attributes = {}, ...content) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...content);
    return made;
  },

  // The same of SVG.
  svg(name, attributes = {}, ...content) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...content);
    return made;
  },

  // A slider with its name and its number. Calls `changed` with each new number.
  slider(label, { min, max, step, value }, changed) {
    const shown = touch.element("output", {}, String(value));
    const input = touch.element("input", { type: "range", min, max, step, value, "aria-label": label });
    input.addEventListener("input", () => {
      shown.textContent = input.value;
      changed(Number(input.value));
    });
    return touch.element("label", { class: "touch-slider" }, `${label} `, input, " ", shown);
  },

  // A button with a text.
  button(text, pressed) {
    const made = touch.element("button", { type: "button" }, text);
    made.addEventListener("click", pressed);
    return made;
  },

  // A number with at most so many digits after the point, without zeros at its end.
  shown(number, digits = 2) {
    return String(Number(number.toFixed(digits)) + 0);
  },
};

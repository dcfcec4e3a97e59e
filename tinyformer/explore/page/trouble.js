/** A line that says what is wrong. It is hidden until something is. */

import { element } from "./text.js";

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

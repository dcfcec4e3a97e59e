/** Moving by the arrow keys in a grid of buttons, whose rows may have different lengths. */

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * Let the arrow keys move the focus from button to button.
 * @param {HTMLElement} box that holds the buttons
 * @param {HTMLButtonElement[][]} rows
 */
export function moveByKeys(box, rows) {
  box.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    const button = event.target.closest("button");
    const row = rows.findIndex((buttons) => buttons.includes(button));
    if (!step || row < 0) return;
    event.preventDefault();
    const next = rows[within(row + step[0], rows.length)];
    next[within(rows[row].indexOf(button) + step[1], next.length)].focus();
  });
}

function within(at, length) {
  return Math.max(0, Math.min(length - 1, at));
}

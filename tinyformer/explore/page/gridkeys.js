/** Moving by the arrow keys among buttons. */

const WAYS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/** Let the arrow keys move the focus to the nearest button of a box in their direction. */
export function moveByKeys(box) {
  box.addEventListener("keydown", (event) => {
    const way = WAYS[event.key];
    if (!way) return;
    event.preventDefault();
    const [x, y] = middle(event.target);
    const places = [...box.querySelectorAll("button:not([hidden])")].map((button) => {
      const apart = middle(button).map((at, i) => at - [x, y][i]);
      const along = apart[0] * way[0] + apart[1] * way[1];
      return { button, along, far: along + 3 * Math.abs(apart[0] * way[1] + apart[1] * way[0]) };
    });
    places.filter(({ along }) => along > 1).sort((a, b) => a.far - b.far)[0]?.button.focus();
  });
}

function middle(element) {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  return [(left + right) / 2, (top + bottom) / 2];
}

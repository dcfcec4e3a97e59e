/** The losses of a run as a small curve over the logarithm of the step, with the steps of its film and a cursor. */

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, EDGE] = [1000, 60, 4];

/** The curve. A click on it chooses a step. */
export class Curve {
  /** @param {(step: number) => void} onchoose */
  constructor(onchoose) {
    this.box = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "curve", role: "img" });
    this.last = 1;
    this.box.addEventListener("click", (event) => {
      const { left, width } = this.box.getBoundingClientRect();
      onchoose(Math.expm1(((event.clientX - left) / width) * Math.log1p(this.last)));
    });
  }

  /**
   * Draw it.
   * @param {number[][]} losses rows of a step, the training loss and the validation loss, which may be null
   * @param {number[]} steps of the film
   * @param {number|null} step at the cursor
   * @param {number} last the last step of the run
   */
  draw(losses, steps, step, last) {
    this.last = Math.max(1, last);
    const known = losses.flatMap(([, ...both]) => both).filter((loss) => loss !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const x = (at) => (WIDTH * Math.log1p(at)) / Math.log1p(this.last);
    const y = (loss) => EDGE + ((HEIGHT - 4 * EDGE) * (high - loss)) / (high - low || 1);
    const line = (which, name) => {
      const points = losses.filter((row) => row[which] !== null).map((row) => `${x(row[0]).toFixed(1)},${y(row[which]).toFixed(1)}`);
      return shape("polyline", { class: name, points: points.join(" ") });
    };
    const ticks = steps.map((at) => shape("line", { class: "tick", x1: x(at), x2: x(at), y1: HEIGHT - 2 * EDGE, y2: HEIGHT }));
    const cursor = step === null ? [] : [shape("line", { class: "cursor", x1: x(step), x2: x(step), y1: 0, y2: HEIGHT })];
    const said = known.length ? `Training loss (line) and validation loss (dashes), from ${high.toFixed(2)} down to ${low.toFixed(2)}, over the logarithm of the step` : "The steps of the film";
    this.box.setAttribute("aria-label", said);
    this.box.replaceChildren(shape("title", {}, said), line(1, "training"), line(2, "validation"), ...ticks, ...cursor);
  }
}

function shape(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The losses of a run as a small curve over the logarithm of the step, with the steps of its film and a cursor. */

const SVG = "http://www.w3.org/2000/svg";
export const END = 1000; // the place of the model's own weights, at the right end
const [LAST, HEIGHT, EDGE] = [970, 60, 4]; // the place of the run's last step

/** The curve. A click on it chooses a frame. */
export class Curve {
  /** @param {(frame: number) => void} onchoose */
  constructor(onchoose) {
    this.box = shape("svg", { viewBox: `0 0 ${END} ${HEIGHT}`, preserveAspectRatio: "none", class: "curve", role: "img" });
    this.places = [END]; // from left to right, of the steps of the film and of its end
    this.box.addEventListener("click", (event) => {
      const { left, width } = this.box.getBoundingClientRect();
      onchoose(this.nearest((END * (event.clientX - left)) / width));
    });
  }

  /** The frame whose place is nearest. */
  nearest(x) {
    const distance = (place) => Math.abs(place - x);
    return this.places.reduce((best, place, at) => (distance(place) < distance(this.places[best]) ? at : best), 0);
  }

  /**
   * Draw it.
   * @param {number[][]} losses rows of a step, the training loss and the validation loss, which may be null
   * @param {number[]} steps of the film
   * @param {number} at the frame at the cursor
   * @param {number} last the last step of the run
   */
  draw(losses, steps, at, last) {
    const x = (step) => Math.round((LAST * Math.log1p(step)) / Math.log1p(Math.max(1, last)));
    this.places = [...steps.map(x), END];
    const known = losses.flatMap(([, training, validation]) => [training, validation]).filter((loss) => loss !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const y = (loss) => EDGE + ((HEIGHT - 4 * EDGE) * (high - loss)) / (high - low || 1);
    const line = (which, name) => {
      const points = losses.filter((row) => row[which] !== null).map((row) => `${x(row[0])},${y(row[which]).toFixed(1)}`);
      return shape("polyline", { class: name, points: points.join(" ") });
    };
    const upright = (name, place, top) => shape("line", { class: name, x1: place, x2: place, y1: top, y2: HEIGHT });
    const said = known.length ? `Training loss (line) and validation loss (dashes), from ${high.toFixed(2)} down to ${low.toFixed(2)}, over the logarithm of the step` : "The steps of the film";
    this.box.setAttribute("aria-label", said);
    const ticks = this.places.map((place) => upright("tick", place, HEIGHT - 2 * EDGE));
    this.box.replaceChildren(shape("title", {}, said), line(1, "training"), line(2, "validation"), ...ticks, upright("cursor", this.places[at] ?? END, 0));
  }
}

function shape(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

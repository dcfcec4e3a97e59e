// Lesson 1: the graph of x * y + x. Numbers are changed by sliders; values go to the right, and gradients to the left.
"use strict";

touch.fill("graph", (place) => {
  const { svg, element, slider, shown } = touch;
  const state = { x: 3, y: 4 };
  const at = { x: [62, 45], y: [62, 185], product: [215, 185], out: [358, 110] };
  const arrows = [["x", "product"], ["y", "product"], ["product", "out"], ["x", "out"]];
  const picture = svg("svg", { viewBox: "0 0 420 225", role: "img", class: "touch-picture" });
  const said = element("p", { "aria-live": "polite" });

  function computed() {
    const { x, y } = state;
    const slopes = { "x>product": y, "y>product": x, "product>out": 1, "x>out": 1 };
    return { values: { x, y, product: x * y, out: x * y + x }, gradients: { x: y + 1, y: x, product: 1, out: 1 }, slopes };
  }

  function draw() {
    const { values, gradients, slopes } = computed();
    picture.replaceChildren();
    for (const [from, to] of arrows) {
      const [[x1, y1], [x2, y2]] = [at[from], at[to]];
      const flow = Math.abs(gradients[to] * slopes[`${from}>${to}`]);
      picture.append(
        svg("line", { x1, y1, x2, y2, class: "touch-flow", "stroke-width": Math.min(1 + flow, 14) }),
        svg("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 12, class: "touch-slope" }, `× ${shown(slopes[`${from}>${to}`])}`),
      );
    }
    for (const [name, [x, y]] of Object.entries(at)) {
      picture.append(
        svg("rect", { x: x - 58, y: y - 34, width: 116, height: 68, rx: 8, class: "touch-node" }),
        svg("text", { x, y: y - 14, class: "touch-name" }, name),
        svg("text", { x, y: y + 5 }, `value ${shown(values[name])}`),
        svg("text", { x, y: y + 24, class: "touch-gradient" }, `gradient ${shown(gradients[name])}`),
      );
    }
    const text =
      `out = x · y + x = ${shown(values.out)}. If x grows by 0.01, out grows by about ${shown(gradients.x / 100, 4)}; ` +
      `if y does, by ${shown(gradients.y / 100, 4)}.`;
    picture.setAttribute("aria-label", `The graph of x times y plus x. ${text}`);
    said.textContent = text;
  }

  for (const name of ["x", "y"]) {
    const change = (value) => {
      state[name] = value;
      draw();
    };
    place.append(slider(name, { min: -5, max: 5, step: 0.5, value: state[name] }, change));
  }
  place.append(picture, said);
  draw();
});

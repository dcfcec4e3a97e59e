// Where positions are explained: sine and cosine waves of many lengths, and how alike two positions are.
"use strict";

touch.fill("positions", (place) => {
  const { svg, element, slider, shown } = touch;
  const width = 16;
  const length = 64;
  const [left, top, wide] = [8, 26, 400];
  let first = 10;
  let second = 14;

  // As in the library: sines in even columns, cosines in odd ones, from a wave of 2 pi positions to one of 10,000 times that.
  function vector(position) {
    return Array.from({ length: width }, (_, i) => {
      const angle = position / 10000 ** ((i - (i % 2)) / width);
      return i % 2 ? Math.cos(angle) : Math.sin(angle);
    });
  }

  const product = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
  const picture = svg("svg", { viewBox: "0 0 420 250", role: "img", class: "touch-picture" });
  const said = element("p", { "aria-live": "polite" });

  function bars(position, y, name) {
    const values = vector(position);
    picture.append(svg("text", { x: left, y: y - 34, class: "touch-left" }, `${name}, position ${position}`));
    picture.append(svg("line", { x1: left, x2: left + wide, y1: y, y2: y, class: "touch-axis" }));
    values.forEach((value, i) => {
      const size = 26 * Math.abs(value);
      picture.append(
        svg("rect", { x: left + (i * wide) / width, y: value > 0 ? y - size : y, width: wide / width - 4, height: size,
          class: i % 2 ? "touch-cosine" : "touch-sine" }),
      );
    });
  }

  function draw() {
    picture.replaceChildren();
    bars(first, top + 38, "a");
    bars(second, top + 128, "b");
    const like = Array.from({ length }, (_, p) => product(vector(first), vector(p)) / (width / 2));
    const points = like.map((value, p) => `${left + (p * wide) / (length - 1)},${240 - 40 * Math.max(value, 0)}`).join(" ");
    picture.append(svg("polyline", { points, class: "touch-line" }));
    picture.append(svg("circle", { cx: left + (second * wide) / (length - 1), cy: 240 - 40 * Math.max(like[second], 0), r: 5, class: "touch-dot" }));
    const text = `a · b = ${shown(product(vector(first), vector(second)))} of at most ${width / 2}. The line shows the product of a with ` +
      `each of the ${length} positions: it depends only on how far away they are.`;
    picture.setAttribute("aria-label", `The vectors of positions ${first} and ${second}. ${text}`);
    said.textContent = text;
  }

  const settings = { min: 0, max: length - 1, step: 1 };
  place.append(
    slider("position a", { ...settings, value: first }, (value) => { first = value; draw(); }),
    slider("position b", { ...settings, value: second }, (value) => { second = value; draw(); }),
    picture,
    said,
  );
  draw();
});

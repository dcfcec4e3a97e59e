// Lesson 6: scores, a mask and the softmax of each row. A cell is a button that masks it or lets it count again.
"use strict";

touch.fill("masks", (place) => {
  const { element, button, slider, shown } = touch;
  const words = place.dataset.words.split(" ");
  const scores = JSON.parse(place.dataset.scores);
  const root = Math.sqrt(Number(place.dataset.width)); // of the width of a key, by which scores are divided
  const allowed = words.map(() => words.map(() => true));
  let sharpness = 1;

  // The weights of a row: of what may be looked at. Where all is masked, they are 0, as in the library.
  function softmax(row, mask) {
    const most = Math.max(...row.filter((_, i) => mask[i]));
    const parts = row.map((score, i) => (mask[i] ? Math.exp((sharpness * (score - most)) / root) : 0));
    const sum = parts.reduce((a, b) => a + b, 0);
    return parts.map((part) => (sum > 0 ? part / sum : 0));
  }

  const cells = words.map((query, i) =>
    words.map((key, j) =>
      button("", () => {
        allowed[i][j] = !allowed[i][j];
        draw();
      }),
    ),
  );
  const head = element("tr", {}, element("td"), ...words.map((word) => element("th", { scope: "col" }, word)));
  const rows = words.map((word, i) =>
    element("tr", {}, element("th", { scope: "row" }, word), ...cells[i].map((cell) => element("td", {}, cell))),
  );
  const caption = element("caption", {}, "Rows look, columns are looked at. Press a cell to mask it.");
  const table = element("table", { class: "touch-weights" }, caption, element("thead", {}, head), element("tbody", {}, ...rows));

  function draw() {
    words.forEach((query, i) => {
      const weights = softmax(scores[i], allowed[i]);
      words.forEach((key, j) => {
        const cell = cells[i][j];
        const what = allowed[i][j] ? `weight ${weights[j].toFixed(2)}, score ${shown(scores[i][j])}` : "masked";
        cell.textContent = allowed[i][j] ? weights[j].toFixed(2) : "–";
        cell.style.setProperty("--weight", weights[j]);
        cell.classList.toggle("is-dark", weights[j] > 0.5);
        cell.setAttribute("aria-pressed", String(!allowed[i][j]));
        cell.setAttribute("aria-label", `${query} looks at ${key}: ${what}`);
      });
    });
  }

  function set(rule) {
    words.forEach((_, i) => words.forEach((_, j) => (allowed[i][j] = rule(i, j))));
    draw();
  }

  place.append(
    element(
      "p",
      { class: "touch-buttons" },
      button("no mask", () => set(() => true)),
      button("causal", () => set((i, j) => j <= i)),
      button("two words of padding", () => set((i, j) => j < words.length - 2)),
      button("all masked", () => set(() => false)),
    ),
    slider("scores times", { min: 0, max: 8, step: 0.5, value: 1 }, (value) => {
      sharpness = value;
      draw();
    }),
    table,
  );
  draw();
});

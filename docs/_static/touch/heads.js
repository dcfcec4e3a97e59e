// Lesson 6: the heads of a trained GPT. A row of the map is a letter that looks; a head can be switched off. The place names the
// head that is shown first, such as data-head="2.1".
"use strict";

touch.fill("heads", (place) => {
  const { element, button } = touch;
  const { model, metadata } = touch.gpt.load();
  const characters = new touch.gpt.Characters(metadata);
  const sampling = new touch.gpt.Sampling();
  const { num_layers, num_heads } = model.config;
  const layers = [...Array(num_layers).keys()];
  const off = new Set(); // such as "2.0", the first head of the third layer
  let [layer, head] = place.dataset.head.split(".").map((number) => number - 1);
  let row = -1;
  let [ids, weights, usual, logits] = [[], [], null, null];

  const text = element("input", { type: "text", maxlength: 40, "aria-label": "Text", value: place.dataset.text });
  const pick = element("p", { class: "touch-buttons", role: "group", "aria-label": "Heads" });
  const turn = button("", () => {
    const name = `${layer}.${head}`;
    if (!off.delete(name)) off.add(name);
    read();
  });
  const map = element("canvas", { class: "touch-map", tabindex: 0, role: "slider", "aria-orientation": "vertical", "aria-valuemin": 1 });
  const letters = element("p", { class: "touch-pieces" });
  const told = element("p");
  const next = element("table", { class: "touch-next", "aria-live": "polite" });

  // What the model computes while the heads that are off give nothing: their columns of the output layer are 0 meanwhile.
  function compute(without) {
    const outputs = layers.map((i) => model.program.constants.get(`blocks.${i}.attention.output.weight`));
    const kept = outputs.map(({ values }) => values);
    for (const name of without) {
      const [i, j] = name.split(".").map(Number);
      const [, inputs] = outputs[i].shape;
      const isOff = (at) => Math.floor(((at % inputs) / inputs) * num_heads) === j;
      outputs[i].values = outputs[i].values.map((value, at) => (isOff(at) ? 0 : value));
    }
    const seen = layers.map(() => null);
    const see = (name, shape, values) => {
      const found = /^blocks\.(\d+)\.attention\.weights$/.exec(name);
      if (found) seen[found[1]] = values;
    };
    const all = model.forward(ids, null, { lastOnly: true, see });
    outputs.forEach((output, i) => (output.values = kept[i]));
    return [all, seen];
  }

  function read() {
    ids = characters.encode(text.value); // without what the model does not know
    if (!ids.length) ids = characters.encode("\n");
    row = ids.length - 1;
    [usual] = compute(new Set());
    [logits, weights] = compute(off);
    draw();
    drawNext();
  }

  const weight = (i, j) => weights[layer][(head * ids.length + i) * ids.length + j];
  const named = (id) => ({ " ": "␣", "\n": "↵" })[characters.texts[id]] ?? characters.texts[id];

  function draw() {
    drawHeads();
    drawMap();
    const shares = ids.map((id, j) => {
      const piece = element("span", {}, named(id));
      piece.style.setProperty("--weight", j <= row ? weight(row, j) : 0);
      if (j === row) piece.setAttribute("class", "is-row");
      return piece;
    });
    letters.replaceChildren(...shares);
    const most = ids.slice(0, row + 1).reduce((best, _, j) => (weight(row, j) > weight(row, best) ? j : best), 0);
    told.textContent = `Letter ${row + 1}, ${named(ids[row])}, looks most at letter ${most + 1}, ${named(ids[most])}: ${weight(row, most).toFixed(2)}.`;
    const values = { "aria-valuemax": ids.length, "aria-valuenow": row + 1, "aria-valuetext": told.textContent };
    for (const [name, value] of Object.entries(values)) map.setAttribute(name, value);
  }

  // The likeliest next letters, and beside them what they were with all heads.
  function drawNext() {
    const [now, before] = [logits, usual].map((of) => sampling.probabilities(of));
    const likeliest = [...now.keys()].sort((a, b) => now[b] - now[a]).slice(0, 5);
    const cell = (text) => element("td", {}, text);
    const rows = likeliest.map((id) => {
      const bar = element("span", { class: "touch-bar" });
      bar.style.setProperty("--weight", now[id]);
      const numbers = [now, ...(off.size ? [before] : [])].map((of) => cell(of[id].toFixed(2)));
      return element("tr", {}, element("th", { scope: "row" }, named(id)), element("td", {}, bar), ...numbers);
    });
    const heading = off.size ? "What comes next, and in grey with all heads" : "What comes next";
    next.replaceChildren(element("caption", {}, heading), element("tbody", {}, ...rows));
  }

  function drawHeads() {
    const all = layers.flatMap((i) => Array.from({ length: num_heads }, (_, j) => [i, j]));
    const hadFocus = [...pick.children].indexOf(document.activeElement);
    const buttons = all.map(([i, j]) => {
      const isOff = off.has(`${i}.${j}`);
      const made = button(`${i + 1}.${j + 1}`, () => {
        [layer, head] = [i, j];
        draw();
      });
      made.classList.toggle("is-off", isOff);
      made.setAttribute("aria-pressed", String(i === layer && j === head));
      made.setAttribute("aria-label", `Layer ${i + 1}, head ${j + 1}${isOff ? ", off" : ""}`);
      return made;
    });
    pick.replaceChildren(...buttons);
    if (hadFocus >= 0) buttons[hadFocus].focus();
    turn.textContent = off.has(`${layer}.${head}`) ? "Switch this head on" : "Switch this head off";
  }

  function drawMap() {
    const [count, size] = [ids.length, 24];
    map.width = map.height = count * size;
    const context = map.getContext("2d");
    for (let i = 0; i < count; i++) {
      for (let j = 0; j <= i; j++) {
        context.fillStyle = `rgba(37, 99, 235, ${0.04 + 0.96 * weight(i, j)})`;
        context.fillRect(j * size, i * size, size - 2, size - 2);
      }
    }
    context.strokeStyle = "#d97706";
    context.lineWidth = 4;
    context.strokeRect(1, row * size, (row + 1) * size - 2, size - 2);
    map.setAttribute("aria-label", `Weights of layer ${layer + 1}, head ${head + 1}: a row looks, a column is looked at`);
  }

  function lookFrom(found) {
    if (found === row || found < 0 || found >= ids.length) return;
    row = found;
    draw();
  }

  for (const name of ["pointerdown", "pointermove"]) {
    map.addEventListener(name, (event) => lookFrom(Math.floor((event.offsetY / map.clientHeight) * ids.length)));
    letters.addEventListener(name, (event) => lookFrom([...letters.children].indexOf(event.target)));
  }
  map.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    lookFrom(row + by);
  });
  text.addEventListener("input", read);
  const label = element("label", { class: "touch-text" }, "Text ", text);
  const seen = element("div", {}, letters, told, element("p", { class: "touch-buttons" }, turn), next);
  place.append(label, pick, element("div", { class: "touch-both" }, map, seen));
  read();
});

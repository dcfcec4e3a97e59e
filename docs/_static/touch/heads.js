// Lesson 6: the heads of a trained GPT. A row of the map is a letter that looks; a head can be switched off.
"use strict";

touch.fill("heads", (place) => {
  const { element, button } = touch;
  const { model, metadata } = touch.gpt.load();
  const characters = new touch.gpt.Characters(metadata);
  const sampling = new touch.gpt.Sampling();
  const off = new Set(); // such as "2.0", the first head of the third layer
  let [layer, head, row] = [0, 0, -1];
  let [ids, weights, usual, logits] = [[], [], null, null];

  const text = element("input", { type: "text", maxlength: 40, "aria-label": "Text", value: place.dataset.text });
  const pick = element("p", { class: "touch-buttons", role: "group", "aria-label": "Heads" });
  const turn = button("", () => {
    const name = `${layer}.${head}`;
    if (!off.delete(name)) off.add(name);
    read();
  });
  const map = element("canvas", { class: "touch-map", tabindex: 0, role: "img" });
  const letters = element("p", { class: "touch-pieces" });
  const told = element("p", { "aria-live": "polite" });
  const next = element("p");

  // What the model computes while the heads that are off give nothing: their columns of the output layer are 0 meanwhile.
  function compute(without) {
    const kept = model.blocks.map((block) => block.attention.output.weight);
    for (const name of without) {
      const [i, j] = name.split(".").map(Number);
      const { attention } = model.blocks[i];
      const { output, d_head } = attention;
      output.weight = output.weight.map((value, at) => (Math.floor((at % output.inputs) / d_head) === j ? 0 : value));
    }
    const seen = model.blocks.map(() => null);
    const see = (name, shape, values) => {
      const found = /^blocks\.(\d+)\.attention\.weights$/.exec(name);
      if (found) seen[found[1]] = values;
    };
    const all = model.forward(ids, null, { lastOnly: true, see });
    model.blocks.forEach((block, i) => (block.attention.output.weight = kept[i]));
    return [all, seen];
  }

  function read() {
    ids = characters.encode(text.value || "\n");
    row = ids.length - 1;
    [usual] = compute(new Set());
    [logits, weights] = compute(off);
    draw();
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
    const likely = (of) => {
      const probabilities = sampling.probabilities(of);
      const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]).slice(0, 5);
      return order.map((id) => `${named(id)} ${probabilities[id].toFixed(2)}`).join(", ");
    };
    next.textContent = `What comes next: ${likely(logits)}${off.size ? `. With all heads: ${likely(usual)}` : ""}.`;
  }

  function drawHeads() {
    const { numHeads } = model.blocks[0].attention;
    const all = model.blocks.flatMap((_, i) => Array.from({ length: numHeads }, (_, j) => [i, j]));
    const hadFocus = [...pick.children].indexOf(document.activeElement);
    const buttons = all.map(([i, j]) => {
      const isOff = off.has(`${i}.${j}`);
      const made = button(isOff ? `${i + 1}.${j + 1} off` : `${i + 1}.${j + 1}`, () => {
        [layer, head] = [i, j];
        draw();
      });
      made.setAttribute("aria-pressed", String(i === layer && j === head));
      made.setAttribute("aria-label", `Layer ${i + 1}, head ${j + 1}${isOff ? ", off" : ""}`);
      return made;
    });
    pick.replaceChildren(...buttons);
    if (hadFocus >= 0) buttons[hadFocus].focus();
    turn.textContent = off.has(`${layer}.${head}`) ? "Switch this head on" : "Switch this head off";
  }

  function drawMap() {
    const [count, size] = [ids.length, 12];
    map.width = map.height = count * size;
    const context = map.getContext("2d");
    for (let i = 0; i < count; i++) {
      for (let j = 0; j <= i; j++) {
        context.fillStyle = `rgba(37, 99, 235, ${0.04 + 0.96 * weight(i, j)})`;
        context.fillRect(j * size, i * size, size - 1, size - 1);
      }
    }
    context.strokeStyle = "#d97706";
    context.lineWidth = 2;
    context.strokeRect(1, row * size, (row + 1) * size - 2, size);
    map.setAttribute("aria-label", `Weights of layer ${layer + 1}, head ${head + 1}: a row looks, a column is looked at`);
  }

  map.addEventListener("pointermove", (event) => {
    const found = Math.floor((event.offsetY / map.clientHeight) * ids.length);
    if (found === row || found < 0 || found >= ids.length) return;
    row = found;
    draw();
  });
  map.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    row = Math.min(ids.length - 1, Math.max(0, row + by));
    draw();
  });
  text.addEventListener("input", read);
  const label = element("label", { class: "touch-text" }, "Text ", text);
  place.append(label, pick, element("p", { class: "touch-buttons" }, turn), map, letters, told, next);
  read();
});

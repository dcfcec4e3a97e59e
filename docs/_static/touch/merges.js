// Lesson 11: byte pairs merge, one step after the other, in a text of the reader's own.
"use strict";

touch.fill("merges", (place) => {
  const { element, button } = touch;
  const field = element("input", { type: "text", value: place.dataset.text, "aria-label": "the text", maxlength: 200 });
  const pieces = element("p", { class: "touch-pieces" });
  const said = element("p", { "aria-live": "polite" });
  const counted = element("ol", { class: "touch-counts" });
  let merges = [];

  // The words of the text, each with the space before it, as letters.
  const words = () => (field.value.match(/ ?[^ ]+| +/g) ?? []).map((word) => [...word]);

  function merged(word, [left, right]) {
    const out = [];
    for (const piece of word) {
      if (piece === right && out.at(-1) === left) out[out.length - 1] = left + right;
      else out.push(piece);
    }
    return out;
  }

  // A letter's place in GPT-2's order, which starts with the visible ones; tokens that merges made come after all letters.
  function id(piece) {
    const code = piece.codePointAt(0);
    const made = merges.findIndex(([left, right]) => left + right === piece);
    return made >= 0 ? 0x200000 + made : code > 32 ? code : 0x110000 + code;
  }

  // The pairs of neighbours within words that occur more than once, with their counts, the most frequent first; of equals, the
  // one of the smallest ids.
  function counts(all) {
    const found = new Map();
    for (const word of all) {
      for (let i = 1; i < word.length; i++) {
        const key = JSON.stringify([word[i - 1], word[i]]);
        found.set(key, (found.get(key) ?? 0) + 1);
      }
    }
    const order = ([a, m], [b, n]) => n - m || id(a[0]) - id(b[0]) || id(a[1]) - id(b[1]);
    return [...found].map(([key, count]) => [JSON.parse(key), count]).filter(([, count]) => count > 1).sort(order);
  }

  const now = () => merges.reduce((all, pair) => all.map((word) => merged(word, pair)), words());
  const visible = (text) => text.replaceAll(" ", "␣");

  function draw() {
    const all = now();
    const pairs = counts(all);
    pieces.replaceChildren(...all.flat().map((piece) => element("span", {}, visible(piece))));
    counted.replaceChildren(
      ...pairs.slice(0, 5).map(([[left, right], count]) => element("li", {}, `${visible(left)} + ${visible(right)}: ${count} times`)),
    );
    const letters = [...field.value].length;
    said.textContent =
      `${letters} letters are ${all.flat().length} tokens after ${merges.length} ${merges.length === 1 ? "merge" : "merges"}. ` +
      (pairs.length ? "The pairs that occur most, of which the first is merged next:" : "No pair occurs twice any more.");
    // They keep the focus: a button that is disabled would lose it.
    step.setAttribute("aria-disabled", String(pairs.length === 0));
    back.setAttribute("aria-disabled", String(merges.length === 0));
  }

  const step = button("merge the most frequent pair", () => {
    const [first] = counts(now());
    if (first) merges.push(first[0]);
    draw();
  });
  const back = button("one back", () => {
    merges.pop();
    draw();
  });
  field.addEventListener("input", () => {
    merges = [];
    draw();
  });
  const buttons = element("p", { class: "touch-buttons" }, step, back);
  place.append(element("label", { class: "touch-text" }, "the text ", field), buttons, pieces, said, counted);
  draw();
});

/** A GPT to play with: it writes on as one types, and shows how likely each next character is. Everything runs in this page. */

import { Characters, Reader, Sampling, seeded, write } from "./writing.js";

const LENGTH = 300; // characters that it writes
const SHOWN = 8; // of the likeliest next characters
const SLICE = 10; // milliseconds of writing, before the page may draw
const NAMES = { "\n": "new line", " ": "space", "\t": "tab" };

/**
 * Fill an element with a field for a text, the model's continuation, and the probabilities of the next character.
 * @param {HTMLElement} element
 * @param {GPT} model of gpt.js
 * @param {object} metadata of the file of its weights. Throws Error for a model whose tokens are not characters.
 * @param {string} [text] to begin with
 */
export function show(element, model, metadata, text = "") {
  new LiveGPT(element, model, new Characters(metadata), text);
}

class LiveGPT {
  constructor(parent, model, characters, text) {
    Object.assign(this, { characters, reader: new Reader(model), seed: 1, turn: 0 });
    this.start = characters.encode("\n")[0] ?? 0; // what comes before the first character of a text
    this.text = make("textarea", { rows: 3, maxLength: 20000, spellcheck: false, autocomplete: "off", value: text });
    this.temperature = make("input", { type: "range", min: 0, max: 2, step: 0.1, value: 0.8 });
    this.topK = make("input", { type: "range", min: 0, max: Math.min(40, characters.texts.length), step: 1, value: 0 });
    this.again = make("button", { type: "button", textContent: "Write another" });
    this.stop = make("button", { type: "button", textContent: "Stop" });
    this.isWriting = false;
    this.written = make("p", { className: "written", tabIndex: 0, role: "region", ariaLabel: "What it writes" });
    this.bars = make("div", { className: "bars", role: "group", ariaLabel: "The likeliest next characters: press one to add it" });
    this.status = make("p", { className: "status", role: "status" });
    const controls = make("div", { className: "controls" }, ...this.sliders(), this.again, this.stop);
    parent.classList.add("livegpt");
    const chances = make("div", { className: "chances" }, make("h2", { textContent: "What comes next" }), this.bars);
    const both = make("div", { className: "both" }, make("div", {}, this.written, this.status), chances);
    parent.replaceChildren(labelled("Your text", this.text), controls, both);
    for (const input of [this.text, this.temperature, this.topK]) input.addEventListener("input", () => this.update());
    this.again.addEventListener("click", () => this.writeAnother());
    this.stop.addEventListener("click", () => this.isWriting && this.end("Stopped"));
    this.update();
  }

  sliders() {
    this.values = { temperature: make("span", { className: "value" }), topK: make("span", { className: "value" }) };
    return [
      labelled("Temperature", this.temperature, this.values.temperature),
      labelled("Top-k", this.topK, this.values.topK),
    ];
  }

  /** Read what was typed or set, show the next character's probabilities, and begin to write. */
  update() {
    const [temperature, topK] = [Number(this.temperature.value), Number(this.topK.value)];
    this.values.temperature.textContent = temperature ? temperature.toFixed(1) : "0: always the likeliest";
    this.values.topK.textContent = topK || "all characters";
    this.sampling = new Sampling({ temperature, topK });
    const known = this.characters.encode(this.text.value);
    this.unknown = [...this.text.value].length - known.length;
    this.ids = known.length ? known : [this.start];
    this.draw(this.sampling.probabilities(this.reader.logits(this.ids)));
    this.write();
  }

  writeAnother() {
    this.seed++;
    this.write();
  }

  /** Write on from the text, a little in each frame, until something else is asked for. */
  write() {
    const turn = ++this.turn;
    const tokens = write(this.reader, this.ids, LENGTH, this.sampling, seeded(this.seed));
    const tail = make("span", { className: "new" });
    this.written.replaceChildren(this.text.value.replace(/^.+(?=.{200}$)/s, "…"), tail);
    this.setWriting(true);
    this.status.textContent = "Writing…";
    let [count, spent] = [0, 0];
    const frame = () => {
      if (turn !== this.turn) return;
      const began = performance.now();
      let next;
      let text = "";
      while (performance.now() - began < SLICE && !(next = tokens.next()).done) {
        text += this.characters.decode([next.value]);
        count++;
      }
      spent += performance.now() - began;
      const { scrollTop, scrollHeight, clientHeight } = this.written;
      tail.append(text);
      if (scrollTop + clientHeight > scrollHeight - 8) this.written.scrollTop = this.written.scrollHeight; // unless the reader went up
      if (next.done) this.end(`${count} characters, ${Math.round((1000 * count) / spent).toLocaleString("en")} a second`);
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  /** Write no more, and say how it ended. */
  end(line) {
    this.turn++;
    this.setWriting(false);
    const left = this.unknown === 1 ? "a character that the model does not know" : `${this.unknown} characters that the model does not know`;
    this.status.textContent = this.unknown ? `${line}. It left out ${left}.` : `${line}.`;
  }

  /** Stop has no effect in between. It stays where the keyboard found it. */
  setWriting(isWriting) {
    this.isWriting = isWriting;
    this.stop.setAttribute("aria-disabled", String(!isWriting));
  }

  /** Show the likeliest characters. */
  draw(probabilities) {
    const best = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a] || a - b).slice(0, SHOWN);
    const hasFocus = this.bars.contains(document.activeElement);
    this.bars.replaceChildren(...best.filter((id) => probabilities[id] > 0).map((id) => this.bar(id, probabilities[id])));
    if (hasFocus) this.bars.firstChild.focus();
  }

  bar(id, probability) {
    const text = this.characters.texts[id];
    const name = NAMES[text] ?? text;
    const told = `${(100 * probability).toFixed(1)}%`;
    const bar = make("span", { className: "bar" });
    bar.style.width = `${100 * probability}%`;
    const row = make("button", { type: "button", ariaLabel: `${name}, ${told}: add it` });
    row.append(make("span", { className: "name", textContent: name }), make("span", {}, bar), make("span", { textContent: told }));
    row.addEventListener("click", () => {
      this.text.value += text;
      this.update();
    });
    return row;
  }
}

/** A new element with these properties, and in it the children. */
function make(tag, properties = {}, ...children) {
  const { role, ...others } = properties;
  const element = Object.assign(document.createElement(tag), others);
  if (role) element.setAttribute("role", role);
  element.append(...children);
  return element;
}

/** A label with its control, and what shows its value. */
function labelled(name, control, value = "") {
  return make("label", {}, make("span", {}, `${name} `, value), control);
}

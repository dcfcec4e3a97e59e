/** Two prompts beside each other: what a block gives at a token for one is put into the other (activation patching). */

import { LONGEST_TEXT } from "./address.js";
import { ask, latest, stream } from "./api.js";
import { page } from "./state.js";
import { counted, element, number, percent, troubleLine, visible } from "./text.js";
import { HeatMap } from "./heatmap.js";

const PROBABILITY = "none"; // against nothing: the probability of the token is measured

/** The second prompt, what is measured, and the map. Event "change": another prompt, or another measure. */
export class Patching extends EventTarget {
  /** @param {HTMLElement} parent gets it */
  constructor(parent) {
    super();
    this.typed = false; // whether prompt B was
    this.measured = null; // what the map is of, as an address says it
    this.text = element("textarea", { rows: 3, spellcheck: false, autocomplete: "off" });
    this.first = element("div", { class: "tokens" });
    this.second = element("div", { class: "tokens" });
    this.go = element("button", { type: "button", class: "first", onclick: () => this.run({}) }, "Compare the prompts");
    this.token = element("select", { "aria-label": "Token", onchange: () => this.run(this.chosen()) });
    this.against = element("select", { "aria-label": "Its logit minus that of", onchange: () => this.run(this.chosen()) });
    this.choices = element("div", { class: "controls", hidden: true }, element("label", {}, "Token ", this.token), element("label", {}, "Its logit minus that of ", this.against));
    this.said = element("p", { class: "note", role: "status" });
    const [trouble, refuse] = troubleLine();
    this.place = element("div", {});
    parent.append(
      element("div", { class: "pasted" }, element("label", {}, "Prompt B ", this.text)),
      element("div", { class: "prompts" }, element("span", {}, "A"), this.first, element("span", {}, "B"), this.second),
      element("div", { class: "controls" }, this.go), trouble, this.choices, this.said, this.place);
    this.cut = latest((signal, measured) => this.encode(signal, measured), refuse);
    this.run = latest((signal, chosen) => this.fill(signal, chosen), refuse);
    this.text.addEventListener("input", () => {
      this.typed = true;
      this.cut(null);
      this.tellChange();
    });
  }

  /**
   * Take over a passage, which is prompt A. Prompt B is the same until something else is typed.
   * @param {object} passage with its texts
   * @param {object} asked the same as questions take it
   * @param {string} text of the passage
   * @param {object} [wanted] what an address says
   */
  prepare(passage, asked, text, wanted = {}) {
    Object.assign(this, { passage, asked });
    if (!this.typed) this.text.value = text;
    this.follow(wanted);
  }

  /** Show the second prompt that an address holds, and the map if it says what is measured. */
  follow({ b, measured = null }) {
    if (b !== undefined) Object.assign(this, { typed: true }).text.value = b;
    this.cut(measured);
  }

  /** The second prompt and what is measured, as an address says it: {b: "The fox", measured: "12-7"}. */
  told() {
    const { value } = this.text;
    return { b: this.typed && value.length <= LONGEST_TEXT ? value : null, measured: this.measured };
  }

  tellChange() {
    this.dispatchEvent(new Event("change"));
  }

  /** The tokens that are chosen to be measured. */
  chosen() {
    return { token: Number(this.token.value), against: this.against.value === PROBABILITY ? null : Number(this.against.value) };
  }

  async encode(signal, measured) {
    this.run(null);
    this.empty();
    this.measured = measured;
    const { model, texts } = this.passage;
    this.b = await ask("encode", { model, text: this.text.value }, signal);
    const [own, other] = [texts, this.b.texts];
    const tokens = (mine, theirs) => mine.map((text, i) => element("span", { class: text === theirs[i] ? "token" : "token differs" }, visible(text)));
    this.first.replaceChildren(...tokens(own, other));
    this.second.replaceChildren(...tokens(other, own));
    const counts = `A has ${counted(own.length, "token")}, B ${counted(other.length, "token")}`;
    const same = own.length === other.length && own.every((text, i) => text === other[i]);
    this.go.disabled = own.length !== other.length || same;
    this.said.textContent = own.length !== other.length ? `${counts}: change one of them until they have as many.` : same ? `${counts}: they are the same. Change a word of B.` : `${counts}.`;
    const chosen = measured && !this.go.disabled ? tokensOf(measured) : null;
    if (chosen) this.run(chosen);
    else if (measured) {
      this.measured = null;
      this.tellChange();
    }
  }

  async fill(signal, chosen) {
    if (!chosen) return; // only to give up on other prompts
    const asked = { a: this.asked, b: { ...this.asked, ids: this.b.ids }, ...chosen };
    for await (const line of stream("patched", asked, signal)) {
      if (signal.aborted) return;
      if (line.blocks) this.begin(line);
      else this.add(line);
    }
  }

  begin(found) {
    this.found = found;
    const { candidates, token, against, blocks, a, b } = found;
    const options = () => candidates.map((one) => new Option(`“${visible(one.text)}”: ${percent(one.a)} after A, ${percent(one.b)} after B`, String(one.id)));
    this.token.replaceChildren(...options());
    this.against.replaceChildren(...options(), new Option("nothing: its probability", PROBABILITY));
    this.token.value = String(token);
    this.against.value = against === null ? PROBABILITY : String(against);
    this.choices.hidden = false;
    this.measured = against === null ? String(token) : `${token}-${against}`;
    this.tellChange();
    const texts = this.passage.texts.map((text, i) => (text === this.b.texts[i] ? visible(text) : `${visible(text)}→${visible(this.b.texts[i])}`));
    this.values = blocks.map(() => texts.map(() => null));
    const name = (id) => `“${visible(candidates.find((one) => one.id === id)?.text ?? "")}”`;
    const what = against === null ? `The probability of ${name(token)}` : `The logit of ${name(token)} minus that of ${name(against)}`;
    const told = against === null ? percent : (x) => number(x).replace("-", "−");
    this.said.textContent = `${what}: ${told(a)} after A, ${told(b)} after B.`;
    const part = (value) => (b === a ? 0 : (value - a) / (b - a));
    this.map?.remove();
    this.map = new HeatMap(this.place, {
      label: `${what} with a layer’s output at a token from prompt B`,
      axes: { rows: "whose output is that of B", columns: "at which token" },
      legend: [[-1, "−100 %"], [-0.5, "−50 %"], [0, `${told(a)} as after A`], [0.5, "50 %"], [1, `${told(b)} as after B`]],
      rows: blocks.map((_, i) => `layer ${i + 1}`),
      columns: texts,
      cell: 24,
      width: texts.length > 32 ? 18 : 28,
      scale: part,
      value: (row, column) => this.values[row][column],
      tell: (row, column, value) => `layer ${row + 1}, ${texts[column]} (position ${column + 1}): ${value === null ? "…" : `${told(value)}, ${String(Math.round(100 * part(value))).replace("-", "−")} % of the way from A to B`}`,
    });
    const first = this.passage.texts.findIndex((text, i) => text !== this.b.texts[i]); // before it nothing can change
    this.map.box.scrollLeft = (first - 1) * this.map.how.width;
    this.map.move(0, first);
  }

  add({ block, first, values }) {
    this.values[block].splice(first, values.length, ...values);
    this.map.draw();
    this.map.say();
  }

  /** Take the map away: it is that of other prompts. */
  empty() {
    this.map?.remove();
    this.map = null;
    this.choices.hidden = true;
  }
}

/** The tokens of a measure that an address names; null where the model has no such ones. */
function tokensOf(measured) {
  const { settings } = page.facts;
  const [token, against = null, ...rest] = measured.split("-").map(Number);
  const isToken = (id) => Number.isInteger(id) && id >= 0 && id < (settings.target_vocab_size ?? settings.vocab_size);
  return isToken(token) && (against === null || isToken(against)) && !rest.length ? { token, against } : null;
}

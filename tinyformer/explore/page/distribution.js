/** The likeliest tokens at a place, with bars. */

import { ask, newest } from "./api.js";
import { saveSvg } from "./save.js";
import { page } from "./state.js";
import { counted, element, number, percent, troubleLine, visible } from "./text.js";

/** The likeliest tokens at a place, as buttons with bars; the token that stands there is marked. */
export class Distribution {
  /**
   * @param {HTMLElement} parent gets it
   * @param {(token: {id: number, text: string, probability: number}) => void} onchoose a token was chosen
   */
  constructor(parent, onchoose) {
    this.title = element("h3", { class: "place" });
    this.line = element("p", { class: "readout entropy" });
    this.list = element("div", { class: "choices", role: "group", "aria-label": "The likeliest tokens. Arrow keys move." });
    [this.trouble, this.refuse] = troubleLine();
    this.save = saveSvg(() => `Likeliest tokens, ${this.title.textContent}`, () => [this.list, this.line]);
    this.save.hidden = true;
    parent.append(this.title, this.trouble, this.list, this.line, this.save);
    this.tokens = [];
    this.list.addEventListener("click", (event) => {
      const row = event.target.closest("button");
      if (row) onchoose(this.tokens[[...this.list.children].indexOf(row)]);
    });
    this.list.addEventListener("keydown", (event) => this.key(event));
    this.shown = ""; // of what is shown
    this.request = newest((...given) => this.answer(...given), this.refuse);
  }

  /**
   * Ask for a distribution and show it, unless it is what is shown. Until it comes, that of before stands there with its title.
   * @param {string} question its name
   * @param {object} asked
   * @param {string} title
   * @param {{id: number, text: string}|null} standing the token that stands there
   */
  ask(question, asked, title, standing = null) {
    const key = JSON.stringify([question, asked, title, page.shown, page.weights[page.model]?.stamp]);
    if (key === this.shown) return;
    this.shown = key;
    this.list.setAttribute("aria-busy", "true");
    this.request(key, question, asked, title, standing);
  }

  async answer(key, question, asked, title, standing) {
    if (key !== this.shown) return; // something else is looked at by now
    try {
      const found = await ask(question, asked);
      if (key === this.shown) this.draw(found, title, standing);
    } catch (error) {
      if (key === this.shown) this.shown = ""; // it may be asked again
      this.title.textContent = title;
      this.empty();
      throw error;
    }
  }

  /** Show an answer that has come in another way. */
  show(found, title, standing = null) {
    this.shown = "";
    this.refuse("");
    this.draw(found, title, standing);
  }

  /** Show only a line. */
  say(title) {
    this.shown = "";
    this.refuse("");
    this.title.textContent = title;
    this.empty();
  }

  empty() {
    this.list.setAttribute("aria-busy", "false");
    this.list.replaceChildren();
    this.tokens = [];
    this.line.textContent = "";
    this.save.hidden = true;
  }

  draw({ best, entropy, possible, probability }, title, standing) {
    this.title.textContent = title;
    this.save.hidden = false;
    this.list.setAttribute("aria-busy", "false");
    const stands = standing !== null && best.some(({ id }) => id === standing.id);
    this.tokens = standing === null || stands ? best : [...best, { ...standing, probability }];
    while (this.list.children.length > this.tokens.length) this.list.lastChild.remove();
    this.tokens.forEach((token, i) => this.drawRow(this.list.children[i] ?? this.addRow(), token, token.id === standing?.id));
    this.line.textContent = `Entropy ${number(entropy)} nats; ${counted(possible, "token is", "tokens are")} possible`;
  }

  addRow() {
    const row = element("button", { type: "button" }, element("span", { class: "name" }), element("span", { class: "rail" }, element("span", { class: "bar" })), element("span", { class: "number" }));
    this.list.append(row);
    return row;
  }

  drawRow(row, { text, probability }, stands) {
    const [name, rail, figure] = row.children;
    const told = percent(probability);
    name.textContent = visible(text);
    rail.firstChild.style.width = `${100 * probability}%`;
    figure.textContent = told;
    row.classList.toggle("standing", stands);
    row.title = `“${visible(text)}”, ${told}${stands ? ", which stands here" : ""}`;
    row.setAttribute("aria-label", row.title);
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const rows = [...this.list.children];
    rows[rows.indexOf(event.target) + by]?.focus();
  }
}

/** A long text whose tokens are coloured. All of its text is on the page, but only what is seen is made of single tokens. */

import { element } from "./text.js";

const ENOUGH = 300; // tokens of a part, which then ends with a line
const MOST = 1000; // tokens of a part where there is no end of a line

/** A token as it stands in a running text: spaces as they are, a sign for what else cannot be seen. */
export function running(text) {
  if (text === "") return "∅";
  return text.replace(/\r/g, "␍").replace(/\t/g, "→").replace(/\n/g, "↵\n");
}

/**
 * A text in a scrolling box, with a line below that tells the numbers of the token under the pointer. The left and right arrow
 * keys move from token to token.
 */
export class ColouredText {
  /**
   * @param {HTMLElement} parent gets the text
   * @param {object} how
   * @param {string} how.label what the text shows, for those who cannot see it
   * @param {(index: number) => string} how.colour the background of a token, as CSS; "" for none
   * @param {(index: number) => string} how.tell the line about a token
   * @param {string} [how.gap] what stands between tokens whose own texts have no spaces
   */
  constructor(parent, how) {
    this.how = { gap: "", ...how };
    this.texts = [];
    this.parts = [];
    this.at = -1;
    this.box = element("div", { class: "tokens long", tabIndex: 0, role: "application", "aria-label": `${how.label}. Left and right arrow keys move.` });
    this.line = element("p", { class: "readout", "aria-live": "polite" });
    parent.replaceChildren(this.box, this.line);
    this.watcher = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.draw(this.parts[target.dataset.part], isIntersecting);
    }, { root: this.box, rootMargin: "300px" });
    this.box.addEventListener("pointermove", (event) => this.point(event));
    this.box.addEventListener("click", (event) => this.point(event));
    this.box.addEventListener("keydown", (event) => this.key(event));
  }

  /** Take the text away. */
  remove() {
    this.watcher.disconnect();
    this.box.remove();
    this.line.remove();
  }

  /** Add tokens at the end. */
  append(texts) {
    for (const text of texts) {
      let part = this.parts.at(-1);
      if (!part || part.count >= MOST || (part.count >= ENOUGH && this.texts.at(-1).includes("\n"))) part = this.begin();
      const index = this.texts.push(text) - 1;
      part.count += 1;
      if (part.drawn) part.node.append(this.token(index));
      else part.node.firstChild.appendData(this.written(index));
    }
  }

  /** Colour the tokens that are seen, from an index on, because what their colours stand for has changed. */
  paint(from = 0) {
    for (const { first, count, node } of this.parts.filter(({ drawn, first, count }) => drawn && first + count > from)) {
      for (let i = Math.max(from - first, 0); i < count; i++) this.colour(node.children[i], first + i);
    }
    if (this.at >= 0) this.line.textContent = this.how.tell(this.at);
  }

  begin() {
    const node = element("div", {}, document.createTextNode(""));
    node.dataset.part = this.parts.length;
    const part = { first: this.texts.length, count: 0, node, drawn: false };
    this.parts.push(part);
    this.box.append(node);
    this.watcher.observe(node);
    return part;
  }

  written(index) {
    return running(this.texts[index]) + this.how.gap;
  }

  /** Make a part of single tokens, or of one text. Both take the same room. */
  draw(part, drawn) {
    if (part.drawn === drawn) return;
    part.drawn = drawn;
    const indices = Array.from({ length: part.count }, (_, i) => part.first + i);
    if (drawn) part.node.replaceChildren(...indices.map((index) => this.token(index)));
    else part.node.replaceChildren(document.createTextNode(indices.map((index) => this.written(index)).join("")));
  }

  token(index) {
    const made = element("span", { class: index === this.at ? "lit" : "" }, this.written(index));
    made.dataset.index = index;
    this.colour(made, index);
    return made;
  }

  colour(token, index) {
    token.style.background = this.how.colour(index);
    token.title = this.how.tell(index);
  }

  /** The element of a token, if it is drawn. */
  find(index) {
    return this.box.querySelector(`span[data-index="${index}"]`);
  }

  /** Tell about a token. */
  move(index) {
    this.find(this.at)?.classList.remove("lit");
    this.at = index;
    this.find(index)?.classList.add("lit");
    this.line.textContent = this.how.tell(index);
  }

  point(event) {
    const index = event.target.dataset?.index;
    if (index !== undefined && Number(index) !== this.at) this.move(Number(index));
  }

  key(event) {
    const last = this.texts.length - 1;
    const next = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: last }[event.key];
    if (next === undefined || last < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(last, next));
    this.draw(this.parts.find(({ first, count }) => index < first + count), true);
    this.move(index);
    this.find(index).scrollIntoView({ block: "nearest" });
  }
}

/** A background on which text can be read: a part, from 0 to 1, of the colour "high" or "other". */
export function tint(colour, x) {
  return `rgba(var(--${colour}), ${(0.5 * Math.max(0, Math.min(1, x))).toFixed(3)})`;
}

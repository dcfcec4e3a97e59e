/** A text as token buttons, of which there may be thousands: it is cut into blocks, and the browser skips those that are not seen. */

import { about, element, percent, visible } from "./text.js";

const MOST = 200; // tokens in a block, if no line ends before

/**
 * Tokens as buttons in a scrolling box. Only one of them is reached by Tab; the arrow keys, Home and End move among them.
 * A token is {id, text, probability, kind}: the probability with which it was picked, or null; kind is a class, such as "start".
 */
export class TokenButtons {
  /**
   * @param {HTMLElement} parent gets the box
   * @param {string} label for those who cannot see it
   * @param {(place: number) => void} onpick a token was clicked, or chosen by Enter
   */
  constructor(parent, label, onpick) {
    this.box = element("div", { class: "tokens written", role: "group", "aria-label": `${label}. Arrow keys move, Enter looks at a token.` });
    parent.append(this.box);
    this.given = Infinity; // how many of them were given: a mark stands before the next one
    this.buttons = [];
    this.at = 0; // which one Tab reaches
    this.lit = null;
    this.follows = true; // whether the newest token is kept in view
    this.top = 0; // how far the box was scrolled when it last was
    this.height = Infinity; // of what is in the box, when it was last drawn
    this.resizes = new ResizeObserver(() => this.follow()); // a block gets its height only when the browser first draws it
    this.box.addEventListener("click", (event) => {
      const place = this.placeOf(event.target);
      if (place === null) return;
      this.reach(place);
      onpick(place);
    });
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("scroll", () => {
      const height = Math.min(this.height, this.box.scrollHeight); // the text may have grown since the reader went to its end
      const ends = this.box.scrollTop + this.box.clientHeight >= height - 40;
      if (ends) this.follows = true;
      else if (this.box.scrollTop < this.top) this.follows = false; // the reader went up; without that, the text has grown
      this.top = this.box.scrollTop;
    });
  }

  /** Show these tokens instead of those before. */
  set(tokens) {
    const focused = this.box.contains(document.activeElement);
    this.box.replaceChildren();
    this.buttons = [];
    this.lit = null;
    tokens.forEach((token) => this.add(token));
    this.reach(Math.min(this.at, tokens.length - 1));
    if (focused) this.focus();
  }

  /** Show one more token. */
  add({ text, probability, kind }) {
    const last = this.buttons.at(-1);
    if (!last || this.room <= 0 || last.dataset.ends) {
      this.block = element("div", { class: "block" });
      this.room = MOST;
      this.box.append(this.block);
      this.resizes.disconnect();
      this.resizes.observe(this.block);
    }
    this.room -= 1;
    const button = element("button", { type: "button", class: kind ? `token ${kind}` : "token", tabIndex: -1 }, ...pieces(text));
    if (text.endsWith("\n")) button.dataset.ends = "1";
    button.title = `“${visible(text)}”`;
    if (probability !== null && probability !== undefined) {
      button.title += `, ${percent(probability)}`;
      button.classList.add("picked");
      button.style.setProperty("--probability", probability.toFixed(3));
    }
    button.setAttribute("aria-label", button.title);
    button.dataset.place = this.buttons.length;
    if (this.buttons.length === this.given) this.block.append(element("span", { class: "prompt-end", title: "Here the given text ends. What follows was written." }, "written:"));
    this.buttons.push(button);
    this.block.append(button);
    if (this.buttons.length === 1) this.reach(0);
  }

  /** Mark a token as the one that is looked at; null marks none. */
  light(place) {
    this.lit?.classList.remove("lit");
    this.lit?.removeAttribute("aria-current");
    this.lit = place === null ? null : this.buttons[place];
    this.lit?.classList.add("lit");
    this.lit?.setAttribute("aria-current", "true");
  }

  /** Scroll to the newest token, if the one before was in view. */
  follow() {
    this.height = this.box.scrollHeight;
    if (this.follows) this.box.scrollTop = this.height;
  }

  /** Tab reaches this token from now on. */
  reach(place) {
    if (this.buttons[this.at]) this.buttons[this.at].tabIndex = -1;
    this.at = Math.max(0, place);
    if (this.buttons[this.at]) this.buttons[this.at].tabIndex = 0;
  }

  focus() {
    this.buttons[this.at]?.focus({ preventScroll: false });
  }

  placeOf(target) {
    const button = target.closest("button");
    return button ? Number(button.dataset.place) : null;
  }

  key(event) {
    const last = this.buttons.length - 1;
    const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: last, ArrowDown: this.beside(1), ArrowUp: this.beside(-1) };
    if (!(event.key in to)) return;
    event.preventDefault();
    this.reach(Math.max(0, Math.min(last, to[event.key])));
    this.focus();
  }

  /** The token in the line below (1) or above (-1). */
  beside(by) {
    const from = this.buttons[this.at]?.getBoundingClientRect();
    if (!from) return 0;
    for (let place = this.at + by; place >= 0 && place < this.buttons.length; place += by) {
      const { top, left, right } = this.buttons[place].getBoundingClientRect();
      const lines = Math.abs(top - from.top) > from.height / 2;
      if (lines && (by > 0 ? right >= from.left || this.buttons[place].dataset.ends : left <= from.left)) return place;
    }
    return this.at;
  }
}

/** The text with signs for what cannot be seen, which are faint. */
function pieces(text) {
  const found = visible(text).split(/([↵→␍␣∅]+)/);
  return found.filter(Boolean).map((piece) => (/^[↵→␍␣∅]/.test(piece) ? element("span", { class: "unseen" }, piece) : piece));
}

/** A legend for the colours of tokens that were picked. */
export function legend(details) {
  const swatch = (p) => {
    const made = element("span", { class: "token picked" }, ` ${100 * p} % `);
    made.style.setProperty("--probability", p);
    return made;
  };
  const line = about("Probability ", details);
  line.classList.add("legend");
  line.firstChild.append(...[0, 0.25, 0.5, 0.75, 1].map(swatch));
  return line;
}

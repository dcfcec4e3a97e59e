/** Who wrote this token: the share of each head and each feed-forward network in a logit, as signed bars. */

import { ask, latest } from "./api.js";
import { headNames } from "./headnames.js";
import { openHead, takeWanted } from "./opening.js";
import { page, whenSeen } from "./state.js";
import { element, percent, signed, troubleLine, visible } from "./text.js";
import { TokenButtons } from "./tokens.js";

const MOST = 20; // bars that are shown at first

/**
 * Draw the tokens to choose from, and the shares of the logit of the prediction made at the chosen one.
 * @returns {(() => void)|string} what takes them away, or why there are none
 */
export function drawAttribution(box, found) {
  if (found.no_shares) return found.no_shares;
  const { place = found.count - 1, token: wanted = null } = takeWanted("attribution");
  const state = { place: Math.min(place, found.count - 1), token: wanted, other: null, byLayer: false, all: false, answer: null, names: null };
  let removed = false;
  const [trouble, refuse] = troubleLine();
  const tokens = new TokenButtons(box, "The text. The prediction after the chosen token is looked at", (place) => {
    Object.assign(state, { place, token: null, other: null });
    load();
  });
  tokens.set(found.texts.map((text) => ({ text })));
  tokens.reach(state.place);
  const token = choiceOf("attribution-token", "Token", (value) => change({ token: value }));
  const other = choiceOf("attribution-other", "minus", (value) => change({ other: value }));
  const order = element("select", { id: "attribution-order" }, new Option("the largest first", ""), new Option("by layer", "layer"));
  order.addEventListener("change", () => change({ byLayer: Boolean(order.value) }, draw));
  const controls = element("div", { class: "controls" }, ...token.parts, ...other.parts, element("label", {}, "Order", order));
  const sum = element("p", { class: "readout", id: "attribution-sum", role: "status" });
  const bars = element("div", { class: "shares", id: "attribution-bars", role: "group", "aria-label": "The shares. Arrow keys move among the heads, Enter opens one." });
  bars.addEventListener("keydown", moveAmong);
  const more = element("button", { type: "button", id: "attribution-more", hidden: true, onclick: () => change({ all: !state.all }, draw) });
  box.append(controls, trouble, sum, bars, more);

  const change = (values, then = load) => {
    Object.assign(state, values);
    then();
  };
  const load = latest(async (signal) => {
    tokens.light(state.place);
    const asked = { passage: found.asked, place: state.place, token: state.token, other: state.other };
    const answer = await ask("attribution", asked, signal);
    if (removed) return;
    state.answer = answer;
    token.offer(answer, answer.token, null);
    other.offer(answer, answer.other, "nothing");
    draw();
    state.names ??= await headNames();
    if (!removed) draw();
  }, refuse);

  function draw() {
    const { answer } = state;
    if (!answer) return;
    sum.textContent = told(answer, found, state.place);
    const shares = sharesOf(answer);
    if (!state.byLayer) shares.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const shown = state.all ? shares : shares.slice(0, MOST);
    const largest = Math.max(...shares.map(({ value }) => Math.abs(value)), 1e-12);
    bars.replaceChildren(...shown.flatMap((share) => barOf(share, largest, state)));
    const first = bars.querySelector("button");
    if (first) first.tabIndex = 0;
    more.hidden = shares.length <= MOST;
    more.textContent = state.all ? `Show ${MOST}` : `Show all ${shares.length}`;
  }

  const forget = whenSeen(tokens.box, load);
  const remove = () => {
    removed = true;
    forget();
  };
  return Object.assign(remove, { take: ({ place: at, token: id }) => change({ place: at, token: id, other: null }) });
}

/** The line that says that the shares sum to the logit. */
function told({ token, other, sum, logit, rounded }, found, place) {
  const one = `“${visible(token.text)}” (${percent(token.probability)})`;
  const what = other ? `The logit of ${one} minus that of “${visible(other.text)}” (${percent(other.probability)})` : `The logit of ${one}`;
  const where = `after “${visible(found.texts[place])}” (position ${place + 1 + found.first})`;
  const differs = rounded ? " This model's weights are rounded to fewer bits, and so are its products: its shares sum to the logit only nearly." : "";
  return `${what} ${where}: the shares sum to ${sum.toFixed(4)}, and the model's own number is ${logit.toFixed(4)}.${differs}`;
}

/** All shares in the order of the layers: {name, value}, and of a head also its layer and number. */
function sharesOf({ embedding, position, layers, biases, rest }) {
  const shares = [{ name: "token embedding", value: embedding }];
  if (position !== null) shares.push({ name: "position embedding", value: position });
  layers.forEach(({ name: layer, heads, feed_forward: value }, i) => {
    heads.forEach((share, head) => shares.push({ name: `layer ${i + 1}, head ${head + 1}`, value: share, layer, head }));
    shares.push({ name: `layer ${i + 1}, MLP`, value });
  });
  shares.push({ name: "biases", value: biases });
  return Math.abs(rest) < 0.00005 ? shares : [...shares, { name: "rest", value: rest }]; // it would be shown as 0.0000
}

/** A name, which leads to the head if it is one; a bar to the right of the middle or to the left of it; and the number. */
function barOf({ name, value, layer, head }, largest, { place, names }) {
  const isHead = head !== undefined;
  const label = isHead
    ? element("button", { type: "button", class: "name", tabIndex: -1, title: "look at it in Attention", onclick: () => openHead(layer, head, place) }, name + (names?.ending(layer, head) ?? ""))
    : element("span", { class: "name" }, name);
  const bar = element("span", { class: value < 0 ? "bar negative" : "bar" });
  bar.style.width = `${50 * Math.abs(value) / largest}%`;
  return [label, element("span", { class: "rail", "aria-hidden": "true" }, bar), element("span", { class: "number" }, signed(value))];
}

/**
 * A choice of a token: the likeliest ones, the one that follows, or one that is typed.
 * @returns {{parts: Node[], offer: (answer: object, chosen: object|null, none: string|null) => void}}
 */
function choiceOf(id, name, chosen) {
  const select = element("select", { id });
  select.addEventListener("change", () => chosen(select.value === "" ? null : Number(select.value)));
  const typed = element("input", { id: `${id}-typed`, autocomplete: "off", spellcheck: false, maxLength: 100, size: 8, placeholder: "or type one", "aria-label": `${name}: a token, typed` });
  typed.addEventListener("change", () => {
    if (typed.value) chosen(typed.value);
    typed.value = "";
  });
  return {
    parts: [element("label", {}, name, select), typed],
    offer: (answer, now, none) => {
      const offered = new Map([...answer.best, ...(answer.next ? [answer.next] : []), ...(now ? [now] : [])].map((one) => [one.id, one]));
      const options = [...offered.values()].map(({ id: i, text, probability }) => new Option(`${visible(text)}  ${percent(probability)}${i === answer.next?.id ? ", which follows" : ""}`, i));
      select.replaceChildren(...(none ? [new Option(none, "")] : []), ...options);
      select.value = now ? String(now.id) : "";
    },
  };
}

/** The arrow keys move among the heads, of which Tab reaches one. */
function moveAmong(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const to = buttons[buttons.indexOf(event.target) + by];
  if (!by || !to) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

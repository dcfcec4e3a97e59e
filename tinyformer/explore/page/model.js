/** The view "model": one picture of the whole model, drawn from what it computes for the text. Its parts open the other views. */

import { addressed } from "./address.js";
import { ask, latest } from "./api.js";
import { labelOf } from "./attention.js";
import { moveByKeys } from "./gridkeys.js";
import { headNames } from "./headnames.js";
import { paintWeights } from "./heads.js";
import { layoutOf } from "./modellayout.js";
import { openCell, openHead, openPart } from "./opening.js";
import { Parts } from "./parts.js";
import { saveSvg } from "./save.js";
import { page } from "./state.js";
import { about, element, percent, placed, signed, troubleLine, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const HELP = "Tokens enter on one side, and the residual stream carries them through the layers. Each head and each MLP reads the stream and writes into it. " +
  "A small map of a head shows its attention weights: a row is a query, a column a key. Maps of the stream and of an MLP show values at each token and neuron: blue is positive, orange negative. " +
  "The wider a line, the more its part adds to the logit of the explained token (blue) or takes from it (orange). A large map shows the largest value of each patch. " +
  "Choose a head to open its attention, a layer to enlarge it, an MLP for its neurons, a cell of the stream for its values, a token to predict what follows it, and an output to explain it.";

const part = {}; // the elements of the view, by name
const chosen = { layer: null, place: null, token: null }; // the enlarged layer, the position, the explained token
let shown = null; // the answer that is drawn, with its passage
let drawn = null; // the elements of the picture: {key, heads, networks, maps, tokens, outputs, fan, spread}
let parts = null; // what can be switched off, once it has been asked for
let without = null; // the predictions with those parts off
let before = ""; // the ids of the text that was drawn last
let of = null; // the model that was chosen last
let names = null; // of heads

const remember = addressed("model", ["layer", "off"], ({ layer, token, explain, off }) => {
  const number = (text, first) => (/^\d+$/.test(text ?? "") && Number(text) >= first ? Number(text) - first : null);
  Object.assign(chosen, { layer: number(layer, 1), place: number(token, 1), token: number(explain, 0) });
  part.linked = off ?? "none";
  if (shown?.passage === page.passage) load(page.passage);
});

/** Fill the section of this view once. */
export function begin(section) {
  const button = (name, text, title, act) => (part[name] = element("button", { type: "button", title, onclick: act }, text));
  [part.trouble, part.refuse] = troubleLine();
  part.said = element("span", { role: "status" });
  button("write", "Write a token", "Let the model write the next token", write);
  button("off", "Switch off", "Choose heads, MLPs or layers to switch off", () => switching(part.off.getAttribute("aria-pressed") !== "true"));
  part.off.setAttribute("aria-pressed", "false");
  part.box = element("div", { class: "model", role: "group", "aria-label": "The model. Arrow keys move, Enter opens a part." });
  const save = saveSvg(() => "The model", () => [part.box]);
  section.append(element("div", { class: "model-bar" }, part.write, part.off, about(part.said, HELP), save), part.trouble, part.box);
  moveByKeys(part.box);
  part.box.addEventListener("focusin", ({ target }) => reach(target));
  for (const event of ["focusin", "pointerover"]) part.box.addEventListener(event, ({ target }) => drawn && weigh(drawn.heads.find(({ button }) => button.contains(target))));
  new ResizeObserver(() => shown && part.box.clientWidth && draw()).observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && draw());
  page.addEventListener("model", () => {
    if (of !== null && of !== page.model) Object.assign(chosen, { layer: null, place: null, token: null }); // not what an address says
    of = page.model;
    parts = without = names = null;
    part.off.setAttribute("aria-pressed", "false");
    part.box.classList.remove("switching");
  });
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  if (page.passage && shown?.passage !== page.passage) load(page.passage);
  else if (page.passage) tell();
}

/** Show the whole model again. Returns whether a layer was enlarged. */
export function leave() {
  const isZoomed = chosen.layer !== null;
  if (isZoomed) enlarge(null);
  return isZoomed;
}

const load = latest(async (signal, passage) => {
  const soon = setTimeout(() => (part.said.textContent = "Computing…"), 500);
  const { place, token } = chosen;
  const asked = page.asked();
  const answer = await ask("picture", { passage: asked, place: place < passage.ids.length ? place : null, token }, signal).finally(() => clearTimeout(soon));
  const grows = before && passage.ids.join().startsWith(`${before},`);
  before = passage.ids.join();
  if (part.linked) await switchLinked(signal, asked);
  else if (parts?.off.size) await ablate(signal, asked);
  shown = { ...answer, passage, stacks: stacksOf(answer, passage) };
  draw();
  if (grows) travel();
  tell();
  names = await headNames().catch(() => null); // the picture is of use without names
  if (shown.passage === passage) nameHeads();
}, (message) => part.refuse(message));

function nameHeads() {
  if (names) for (const { button, layer, head } of drawn.heads) names.mark(button, layer.name, head, button.title.split(" · ")[0]);
}

/** The stacks of a model as the picture draws them: {name, texts, first, maps, layers}, of each layer its heads and its network. */
function stacksOf({ stacks, layers, shares, first }, { texts, sourceTexts }) {
  const hasSource = sourceTexts.length > 0;
  return stacks.map(({ name, maps }, at) => {
    const isSource = hasSource && at === 0;
    const own = layers.filter(({ queries }) => !hasSource || (queries === "source") === isSource);
    const isRecurrent = name.endsWith("hidden");
    const blocks = Array.from({ length: isRecurrent ? 0 : maps.length - 1 }, (_, i) => {
      const attention = own.filter((layer) => Number(layer.name.match(/\d+/)?.[0] ?? 0) === i);
      const heads = attention.flatMap((layer) => layer.maps.map((map, head) => ({ layer, head, map, share: shares?.heads[i][head] ?? null })));
      return { name: attention[0].name.replace(/\.[^.]*$/, ""), heads, neurons: shares?.neurons[i] ?? null, share: shares?.feed_forward[i] ?? null };
    });
    return { name: hasSource ? (isSource ? "encoder" : "decoder") : "", isSource, isRecurrent, texts: isSource ? sourceTexts : texts.slice(first), maps, blocks };
  });
}

/** Draw the picture. Where it has the parts of the one before, it moves: its elements stay. */
function draw() {
  const room = { width: part.box.clientWidth, height: innerHeight - part.box.getBoundingClientRect().top - scrollY - 12 };
  const layout = layoutOf(shown.stacks, room, chosen.layer, shown.best.length);
  part.box.style.height = `${layout.height}px`;
  const key = JSON.stringify([layout, shown.passage.texts, shown.passage.sourceTexts]);
  if (drawn?.key !== key) build(layout, key);
  paint(layout);
}

function build(layout, key) {
  const focused = [...part.box.querySelectorAll("button")].indexOf(document.activeElement);
  const made = [];
  const put = (at, name, className, onclick, ...children) => {
    const one = element(onclick ? "button" : "div", { class: className, ...(onclick ? { type: "button", onclick, title: name, tabIndex: -1, "aria-label": name } : {}) }, ...children);
    Object.assign(one.style, { left: `${at.x}px`, top: `${at.y}px`, width: `${at.width}px`, height: `${at.height}px` });
    made.push(one);
    return one;
  };
  const mapIn = (at, name, className, act, ...more) => {
    const canvas = element("canvas", { "aria-hidden": "true" });
    return { canvas, button: put(at, name, className, act, canvas, ...more) };
  };
  const svg = shape("svg", { width: layout.width, height: layout.height, "aria-hidden": "true" });
  const line = (d, name) => svg.appendChild(shape("path", { d, class: name }));
  drawn = { key, isWide: layout.isWide, heads: [], networks: [], maps: [], tokens: [], outputs: [], spread: [], layers: [] };
  for (const stack of layout.stacks) {
    const { texts, isSource, isRecurrent } = shown.stacks[stack.at];
    for (const band of stack.bands) line(band, "band");
    for (const { text, ...at } of stack.labels) put(at, "", "label", null, text);
    for (const { from, to, d, ...at } of stack.tokens) {
      const text = texts.slice(from, to).join("");
      const name = `${to - from > 1 ? `tokens ${from + 1 + shown.first} to ${to + shown.first}: ` : ""}${placed(texts[to - 1], to - 1 + shown.first)}`;
      drawn.tokens.push({ from, to, stack, line: line(d, "fan"), button: put(at, name, "token", () => (isSource ? null : explain(to - 1, null)), visible(text)) });
    }
    for (const { node, ...at } of stack.nodes) {
      const name = isRecurrent ? `layer ${node + 1}, states` : node ? `residual stream after layer ${node}` : "embeddings";
      drawn.maps.push({ stack, node, ...mapIn(at, name, "stream", (event) => openValues(stack, node, event)) });
    }
    for (const { layer, ...at } of stack.layers) {
      const label = `${shown.stacks[stack.at].name} layer ${layer + 1}`.trim();
      drawn.layers.push(put(at, label, "layer", () => act({ kind: "block", name: shown.stacks[stack.at].blocks[layer].name, index: 0 }, () => enlarge(chosen.layer === layer ? null : layer)), at.width > 56 ? label : String(layer + 1)));
    }
    for (const { layer, head, reads, writes, x, y, width, height } of stack.heads) {
      const { layer: of, head: number } = shown.stacks[stack.at].blocks[layer].heads[head];
      const name = of.heads > 1 ? `${labelOf(of)}, head ${number + 1}` : labelOf(of);
      line(reads, "reads");
      drawn.heads.push({ stack, at: [layer, head], layer: of, head: number, line: line(writes, "writes"), ...mapIn({ x, y, width, height }, name, of.kind === "cross" ? "head cross" : "head", () => act({ kind: "head", name: of.name, index: number }, () => openHead(of.name, number, isSource ? null : shown.place))) });
    }
    for (const { layer, reads, writes, ...at } of stack.networks) {
      const { name } = shown.stacks[stack.at].blocks[layer];
      line(reads, "reads");
      drawn.networks.push({ stack, layer, name: `${name}.feed_forward`, line: line(writes, "writes"), ...mapIn(at, `layer ${layer + 1}, MLP`, "network", () => act({ kind: "network", name: `${name}.feed_forward`, index: 0 }, () => openPart("neurons", { place: shown.place })), element("span", {}, "MLP")) });
    }
  }
  for (const d of layout.crossings) line(d, "reads");
  for (const { d, ...at } of layout.outputs) drawn.outputs.push({ line: line(d, "spread"), button: put(at, "output", "output", () => explainOutput(at.index), element("span", { class: "name" }), element("span", { class: "rail" }, element("span", { class: "bar" }), element("span", { class: "bar other" })), element("span", { class: "number" })) });
  const { start, end, middle } = layout.stacks.at(-1);
  const [across, down] = layout.isWide ? [end - start, 0] : [0, end - start];
  drawn.pulse = put({ x: layout.isWide ? start : middle, y: layout.isWide ? middle - 5 : start, width: 10, height: 10 }, "", "pulse", null);
  drawn.pulse.style.setProperty("--across", `${across}px`);
  drawn.pulse.style.setProperty("--down", `${down}px`);
  drawn.pulse.hidden = true;
  part.box.replaceChildren(svg, ...made);
  const buttons = [...part.box.querySelectorAll("button")];
  reach(buttons[Math.min(focused, buttons.length - 1)] ?? buttons[0], focused >= 0);
}

/** Colour the maps, and draw each line as strong as what its part adds. */
function paint(layout) {
  const largest = Math.max(1e-9, ...shown.stacks.flatMap(({ blocks }) => blocks.flatMap(({ heads, share }) => [share, ...heads.map((one) => one.share)])).map((share) => Math.abs(share ?? 0)));
  const explained = shown.shares && shown.best.find(({ id }) => id === shown.shares.token);
  const strengthen = (one, share, name) => {
    const strength = share === null ? 0.3 : Math.sqrt(Math.abs(share) / largest);
    one.line.style.strokeWidth = 0.5 + 7 * strength ** 2;
    one.line.style.opacity = 0.15 + 0.85 * strength;
    one.line.classList.toggle("negative", share < 0);
    one.button.style.setProperty("--share", strength.toFixed(3));
    one.button.classList.toggle("negative", share < 0);
    const isOff = Boolean(parts?.isOff(name));
    one.button.setAttribute("aria-pressed", String(isOff));
    one.line.classList.toggle("off", isOff);
    one.button.title = one.button.title.replace(/: adds .*/, "") + (share === null ? "" : `: adds ${signed(share)}${explained ? ` to “${visible(explained.text)}”` : ""}`);
    one.button.setAttribute("aria-label", one.button.title);
  };
  for (const one of drawn.heads) {
    const { map, share, layer, head } = shown.stacks[one.stack.at].blocks[one.at[0]].heads[one.at[1]];
    one.layer = layer;
    paintWeights(one.canvas, layer, bytesOf(map));
    strengthen(one, share, { kind: "head", name: layer.name, index: head });
  }
  for (const one of drawn.networks) {
    const { neurons, share } = shown.stacks[one.stack.at].blocks[one.layer];
    if (neurons) paintSigned(one.canvas, neurons, false);
    one.button.classList.toggle("plain", !neurons);
    strengthen(one, share, { kind: "network", name: one.name, index: 0 });
  }
  for (const { stack, node, canvas } of drawn.maps) paintSigned(canvas, shown.stacks[stack.at].maps[node], !layout.isWide);
  drawn.layers.forEach((button, i) => button.setAttribute("aria-pressed", String(Boolean(parts?.isOff({ kind: "block", name: layout.names[i], index: 0 })))));
  nameHeads();
  drawOutputs(explained);
  weigh(null);
}

function drawOutputs(explained) {
  const rows = without?.tokens.slice(0, drawn.outputs.length) ?? shown.best;
  drawn.outputs.forEach(({ button, line }, i) => {
    const { id, text, probability, before: first = probability, after } = rows[i] ?? { text: "", probability: 0 };
    const [name, rail, figure] = button.children;
    button.hidden = !rows[i];
    name.textContent = visible(text);
    rail.children[0].style.width = `${100 * first}%`;
    rail.children[1].style.width = `${100 * (after ?? 0)}%`;
    rail.children[1].hidden = after === undefined;
    figure.textContent = percent(after ?? first);
    button.title = `“${visible(text)}”: ${percent(first)}${after === undefined ? "" : `, ${percent(after)} with parts off`}`;
    button.setAttribute("aria-label", button.title);
    button.setAttribute("aria-pressed", String(explained?.id === id));
    line.style.strokeWidth = 1 + 8 * (after ?? first);
    line.style.opacity = rows[i] ? 0.2 + 0.8 * (after ?? first) : 0;
  });
}

/** Shade the tokens by how strongly the position attends to them: in a head, or in the mean of all. */
function weigh(head) {
  const target = shown.stacks.at(-1);
  const heads = (head ? [head] : drawn.heads).filter(({ layer }) => (layer.keys === "source" || !target.isSource) && (head || layer.queries !== "source"));
  for (const one of drawn.tokens) {
    const { isSource, texts } = shown.stacks[one.stack.at];
    let sum = 0;
    let count = 0;
    for (const { layer, stack, at } of heads) {
      if ((layer.keys === "source") !== isSource) continue;
      const bytes = bytesOf(shown.stacks[stack.at].blocks[at[0]].heads[at[1]].map);
      const queries = shown.stacks[stack.at].texts.length;
      const row = Math.floor((Math.min(shown.place, queries - 1) * layer.rows) / queries);
      const [first, last] = [one.from, one.to - 1].map((key) => Math.floor((key * layer.columns) / texts.length));
      let most = 0;
      for (let key = first; key <= last; key++) most = Math.max(most, bytes[row * layer.columns + key]);
      sum += most / 255;
      count += 1;
    }
    const weight = count ? sum / count : 0;
    one.button.style.setProperty("--weight", Math.sqrt(weight).toFixed(3));
    one.line.style.opacity = 0.08 + 0.92 * Math.sqrt(weight);
    one.line.style.strokeWidth = 0.5 + 4 * weight;
    const isAt = !isSource && one.from <= shown.place && shown.place < one.to;
    if (isAt) one.button.setAttribute("aria-current", "true");
    else one.button.removeAttribute("aria-current");
  }
}

/** Say in one line why the token is predicted, or what is off. */
function tell() {
  const { place, shares, best, stacks, first } = shown;
  const { texts } = stacks.at(-1);
  const where = `${page.facts.kind === "masked" ? "at" : "after"} ${placed(texts[place], place + first)}`;
  remember({ layer: chosen.layer === null ? null : chosen.layer + 1, token: chosen.place === null ? null : chosen.place + 1, explain: chosen.token, off: parts?.off.size ? parts.told().off : null });
  page.trail(chosen.layer === null ? [] : [`Layer ${chosen.layer + 1}`]);
  part.write.hidden = !["language", "translation"].includes(page.facts.kind);
  if (parts?.off.size) {
    part.said.textContent = `Off: ${[...parts.off.values()].map((one) => parts.label(one)).join("; ")}. Divergence ${without.divergence.toFixed(3)} nats`;
    return;
  }
  const explained = shares && (best.find(({ id }) => id === shares.token) ?? best[0]);
  if (!explained) {
    part.said.textContent = best.length ? `${page.facts.kind === "masked" ? "Prediction" : "Next token"} ${where}: “${visible(best[0].text)}” ${percent(best[0].probability)}` : `Strength: attention ${where}`;
    return;
  }
  const named = stacks[0].blocks.flatMap(({ heads, share }, i) => [...heads.map((one, head) => [`layer ${i + 1} head ${head + 1}`, one.share]), [`layer ${i + 1} MLP`, share]]);
  const most = named.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, 3).map(([name, share]) => `${name} ${signed(share)}`);
  const all = element("button", { type: "button", class: "link", onclick: () => openPart("attribution", { place, token: shares.token }) }, "all");
  part.said.replaceChildren(`Why “${visible(explained.text)}” ${where}: ${most.join(", ")} · `, all);
}

/** Explain another position, or another token there. */
function explain(place, token) {
  Object.assign(chosen, { place, token });
  if (parts?.off.size) parts.off.clear();
  without = null;
  load(page.passage);
}

function explainOutput(index) {
  const { id } = (without?.tokens ?? shown.best)[index];
  if (shown.shares) explain(chosen.place, id);
}

function enlarge(layer) {
  chosen.layer = layer;
  if (!shown) return;
  tell(); // the line at the head of the view takes room
  draw();
}

/** Show the values at a cell of a stream that was clicked, or at the chosen position. */
function openValues(stack, node, event) {
  const { left, top, width: across, height: down } = event.currentTarget.getBoundingClientRect();
  const { isWide } = drawn;
  const [x, y] = [(event.clientX - left) / across, (event.clientY - top) / down];
  const [token, unit] = isWide ? [y, x] : [x, y];
  const at = (part, count) => Math.min(count - 1, Math.floor(part * count));
  if (shown.stacks[stack.at].isRecurrent) openPart("states");
  else if (event.detail) openCell(node, at(token, shown.count), at(unit, page.facts.settings.d_model));
  else openCell(node, shown.place, 0); // chosen by a key
}

/** While parts are switched off, a click switches the part; otherwise it opens the part. */
function act(name, open) {
  if (part.off.getAttribute("aria-pressed") === "true" && parts) parts.toggle(name);
  else open();
}

const switching = latest(async (signal, on) => {
  if (on) await learnParts(signal);
  part.off.setAttribute("aria-pressed", String(on && Boolean(parts)));
  part.box.classList.toggle("switching", on && Boolean(parts));
  if (!on && parts?.off.size) parts.clear();
}, (message) => part.refuse(message));

async function learnParts(signal) {
  if (parts) return;
  const { model } = page;
  const { blocks, why } = await ask("blocks", { model }, signal);
  if (model !== page.model) return;
  part.refuse(why ?? "");
  if (why) return;
  parts = new Parts(blocks);
  parts.addEventListener("change", () => changed(page.asked()));
}

/** Switch off what an address names. */
async function switchLinked(signal, asked) {
  const off = part.linked;
  part.linked = "";
  if (off !== "none") await switching(true);
  if (!parts) return;
  parts.follow({ by: "zero", off });
  await ablate(signal, asked);
}

const changed = latest(async (signal, asked) => {
  if (chosen.place !== null) {
    chosen.place = null;
    await load(page.passage);
    return;
  }
  await ablate(signal, asked);
  draw();
  tell();
}, (message) => part.refuse(message));

async function ablate(signal, asked) {
  without = parts.off.size ? await ask("ablated", { passage: asked, off: parts.asked() }, signal) : null;
}

/** Let the model write a token, which becomes a part of the text. */
const write = latest(async (signal) => {
  const { best } = await ask("next_token", { passage: page.asked(), sampling: page.sampling }, signal);
  const field = document.getElementById("text");
  Object.assign(chosen, { place: null, token: null });
  field.value += best[0].text;
  field.dispatchEvent(new Event("input"));
}, (message) => part.refuse(message));

/** A written token travels through the picture once. */
function travel() {
  drawn.pulse.hidden = true;
  requestAnimationFrame(() => (drawn.pulse.hidden = false));
}

/** Tab reaches this button from now on. */
function reach(button, isFocused = false) {
  if (!button?.matches("button")) return;
  if (part.reached) part.reached.tabIndex = -1;
  part.reached = button;
  button.tabIndex = 0;
  if (isFocused) button.focus({ preventScroll: true });
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/** Colour a map of signed values, with its rows as columns if it is turned. */
function paintSigned(canvas, { height, width, cells }, isTurned) {
  Object.assign(canvas, isTurned ? { width: height, height: width } : { width, height });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(canvas.width, canvas.height);
  const style = getComputedStyle(document.documentElement);
  const [high, other] = ["--high", "--other"].map((name) => style.getPropertyValue(name).split(",").map(Number));
  new Int8Array(bytesOf(cells).buffer).forEach((value, i) => {
    const at = isTurned ? (i % width) * height + Math.floor(i / width) : i;
    image.data.set([...(value < 0 ? other : high), 255 * Math.sqrt(Math.abs(value) / 127)], 4 * at);
  });
  pen.putImageData(image, 0, 0);
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

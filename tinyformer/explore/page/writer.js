/** Writing: a text as it is sampled, the likeliest tokens at each place, and the branches that leave there. */

import { addressed } from "./address.js";
import { latest, stream } from "./api.js";
import { Trees } from "./branches.js";
import { numberOf, samplingControls } from "./controls.js";
import { Distribution } from "./distribution.js";
import { page } from "./state.js";
import { saveSvg } from "./save.js";
import { counted, element, troubleLine, visible } from "./text.js";
import { TokenButtons, legend } from "./tokens.js";
import { drawTree } from "./branchtree.js";

const MOST_TOKENS = 5000; // that the server writes at once

const trees = new Trees();
let tree = null; // of the prompt
let own = null; // the passage that was set here: a branch
let drawn = null; // the passage that is drawn
let place = null; // the token that is looked at; null: the one that comes next
let running = null; // what is being written: {branch, found}
let text, panel, buttons, status, trouble, refuse, branches;

let linked = null; // the token of an address whose text is not there yet
const remember = addressed("write", [], ({ token }) => {
  linked = Number(token) >= 1 ? Math.floor(Number(token)) - 1 : null;
  if (tree && own === page.passage && takeLinked()) draw();
});

/** Look at the token that an address names, if the text has it. */
function takeLinked() {
  if (linked === null || linked >= tree.length()) return false;
  [place, linked] = [linked, null];
  return true;
}

/** Whether a text is being written. */
export function isWriting() {
  return running !== null;
}

/** Fill this part of the view once. */
export function begin(part) {
  trees.trees = Array.isArray(page.writing.trees) ? page.writing.trees : [];
  page.writing.trees = trees;
  part.append(controls());
  [trouble, refuse] = troubleLine();
  status = element("p", { class: "note status", role: "status" });
  const left = element("div", {}, legend("Choose a token for its alternatives, and one of those to branch there."));
  const right = element("div", { class: "distribution" });
  branches = element("div", { class: "branches" });
  part.append(trouble, status, element("div", { class: "side" }, left, right), element("h3", {}, "Branches"), branches);
  text = new TokenButtons(left, "The text", look);
  left.append(saveSvg(() => "The text, coloured by probability", () => [left]));
  panel = new Distribution(right, choose);
  part.addEventListener("keydown", (event) => event.key === "Escape" && escape(event));
  page.addEventListener("passage", adopt);
  page.addEventListener("model", () => {
    stop();
    tree = null;
  });
  page.addEventListener("sampling", () => page.view === "write" && tree && showPlace());
  window.addEventListener("pagehide", () => page.keep());
}

/** Draw what the page holds now. */
export function show() {
  if (!tree) return;
  if (drawn !== own) draw();
  showPlace();
}

function controls() {
  const row = element("div", { class: "controls" });
  buttons = {
    write: element("button", { type: "button", class: "first" }, "Write"),
    stop: element("button", { type: "button" }, "Stop"),
    clear: element("button", { type: "button" }, "Clear"),
  };
  buttons.write.addEventListener("click", () => running || hasEnded() || !tree || write(tree.fork(tree.length())));
  buttons.stop.addEventListener("click", stop);
  buttons.clear.addEventListener("click", clear);
  row.append(...Object.values(buttons));
  const length = { get: () => page.writing.length, set: (value) => page.set({ writing: { ...page.writing, length: value } }) };
  numberOf(row, { name: "Length", min: 1, max: MOST_TOKENS, ...length });
  samplingControls(row);
  return row;
}

/** Take over a passage that was set elsewhere as the prompt, with its branches if it had some. */
function adopt() {
  if (!page.passage || page.passage === own) return;
  if (page.isFrame && tree) return writeAnew();
  stop();
  if (!["language", "translation"].includes(page.facts.kind)) {
    tree = own = null;
    return;
  }
  const before = tree;
  tree = trees.of(page.passage);
  tree.prompt = page.passage;
  if (tree !== before && !takeLinked()) place = null; // with new weights it is the same tree
  if (tree !== before) say("");
  lookAt();
}

/** Another step is shown: it writes what was written, from the same seed. */
function writeAnew() {
  const { branch, length } = running ?? { branch: tree.looked, length: tree.looked.tokens.length };
  if (page.view !== "write" || branch === tree.root) {
    own = page.passage;
    return;
  }
  running = null;
  receive(null);
  branch.tokens = [];
  write(branch, length);
}

/** The branch that is looked at becomes the passage of all views. */
function lookAt() {
  own = tree.passage();
  if (own === page.passage) page.keep();
  else page.set({ passage: own }, "passage");
}

function draw() {
  drawn = own;
  text.follows = true;
  text.given = tree.prompt.ids.length;
  text.set(tree.tokens().map(withKind));
  text.reach(place ?? text.buttons.length - 1);
  text.light(place);
  if (place === null) text.follow();
  drawBranches();
}

function drawBranches() {
  drawTree(branches, tree, go, remove);
  const state = (button, on) => button.setAttribute("aria-disabled", String(!on));
  state(buttons.write, !running && !hasEnded());
  state(buttons.stop, Boolean(running));
  state(buttons.clear, tree.branches.length > 1);
}

/** A token with what it is: the ones that a model begins with are faint. */
function withKind(token, i) {
  const { start, kind } = page.facts;
  const begins = i < start.length && tree.prompt.ids[i] === start[i] && (kind === "translation" || !page.text);
  return { ...token, kind: begins ? "start" : "" };
}

/** Whether the model has ended the text that is looked at. */
function hasEnded() {
  const last = tree?.looked.tokens.at(-1);
  return Boolean(last) && tree.looked !== tree.root && page.facts.ends.includes(last.id);
}

/** Show the likeliest tokens at the place that is looked at. */
function showPlace() {
  remember({ token: place === null ? null : place + 1 });
  if (running && place === null) return; // then the newest token is shown
  const tokens = tree.tokens();
  const asked = (ids) => ({ passage: { ...page.asked(), ids }, sampling: page.sampling });
  const ids = tokens.map(({ id }) => id);
  if (place === 0) panel.say(`Position 1: “${visible(tokens[0].text)}”. Nothing stands before it, so the model says nothing about it`);
  else if (place !== null) {
    const { id, text: name } = tokens[place];
    panel.ask("next_token", { ...asked(ids.slice(0, place)), chosen: id }, `Position ${place + 1}: “${visible(name)}”`, tokens[place]);
  } else if (hasEnded()) panel.say("The text ends here. Choose one of its tokens to go on from another");
  else panel.ask("next_token", asked(ids), `The next token, at position ${ids.length + 1}`);
}

function look(at) {
  place = at === place ? null : at;
  text.light(place);
  showPlace();
}

function escape(event) {
  if (!running && place === null) return;
  event.preventDefault();
  if (running) {
    stop();
    return;
  }
  place = null;
  text.light(null);
  text.focus();
  showPlace();
}

/** Go on from one of the likeliest tokens, instead of from the token that stands there. */
function choose({ id, text: name, probability }) {
  stop();
  const tokens = tree.tokens();
  const at = place ?? tokens.length;
  const stands = place !== null && tokens[at].id === id;
  const branch = tree.fork(stands ? at + 1 : at);
  if (!stands) branch.tokens.push({ id, text: name, probability });
  place = null;
  own = tree.passage();
  draw();
  text.focus();
  if (hasEnded()) lookAt();
  else write(branch);
}

function go(branch) {
  stop();
  tree.looked = branch;
  place = null;
  say("");
  lookAt();
}

function remove(branch) {
  stop();
  tree.remove(branch);
  place = null;
  lookAt();
  drawBranches();
}

function clear() {
  if (!tree) return;
  stop();
  tree.children(tree.root).forEach((branch) => tree.remove(branch));
  place = null;
  say("");
  lookAt();
}

const receive = latest(async (signal, mine, asked) => {
  if (!mine) return; // only to give up on what was written before
  try {
    for await (const found of stream("write", asked, signal)) {
      if (running !== mine) return;
      add(mine, found);
    }
  } finally {
    finish(mine);
  }
}, (message) => refuse(message));

/** Let the model go on with a branch. */
function write(branch, length = page.writing.length) {
  const mine = { branch, length, found: null, count: 0, framed: false };
  running = mine;
  place = null;
  own = tree.passage();
  if (drawn !== own) draw();
  say("Writing. Stop or Escape stops it.");
  const { ids, source, model } = own;
  receive(mine, { passage: { model, ids, source }, length, sampling: page.sampling });
}

/** One more token has come. It is put on the page at once; what needs the layout waits for the next frame. */
function add(mine, { id, text: name, ...found }) {
  const token = { id, text: name, probability: found.probability };
  mine.branch.tokens.push(token);
  mine.count += 1;
  mine.newest = { token, found };
  text.add(token);
  if (mine.framed) return;
  mine.framed = true;
  requestAnimationFrame(() => {
    mine.framed = false;
    if (running !== mine) return;
    text.follow();
    if (place !== null) return; // another token is looked at
    panel.show(mine.newest.found, `Position ${tree.length()}: “${visible(mine.newest.token.text)}”`, mine.newest.token);
  });
}

function stop() {
  if (!running) return;
  const mine = running;
  receive(null);
  finish(mine);
}

/** What was being written is done, or was stopped. */
function finish(mine) {
  if (running !== mine) return;
  running = null;
  if (!mine.branch.tokens.length) tree.remove(mine.branch);
  say(`${counted(mine.count, "token")} written${hasEnded() ? "; the text ends here" : ""}`);
  if (place === null && !text.box.contains(document.activeElement)) text.reach(text.buttons.length - 1);
  text.follow();
  own = drawn = tree.passage();
  drawBranches();
  if (own === page.passage) showPlace();
  else page.set({ passage: own }, "passage");
}

function say(line) {
  status.textContent = line;
}

/**
 * The address of what is shown: the tab and what is chosen in it, in the URL's fragment, such as #attention?model=best&head=2.
 * A reload or a link shows the same again, and "back" goes to what was shown before.
 *
 * A view has an address by one line, and a second one where something is chosen in it:
 *
 *   const remember = addressed("attention", ["layer", "head"], go);
 *   remember({ layer: "blocks.0.attention", head: 2, token: 5 });
 *
 * Here "back" undoes another layer or head, and not another token. go({layer, head, token}) gets what an address says, as text:
 * a value may be missing, or be one that the view does not have.
 */

export const LONGEST_TEXT = 500; // characters of a text that is a part of the address
const SOON = 250; // milliseconds after which a change that is no step is in the address: browsers allow few changes a second
const OURS = "explorer"; // the state of the entries of the history that were made here, and not by a link

const views = new Map(); // by name: {steps, go, chosen}
let current = ""; // the tab
let shared = {}; // what is chosen for all tabs, such as the model
let acted = false; // whether the user has done something since an address was followed
let soon = null;

for (const kind of ["pointerdown", "keydown", "click", "change"]) {
  window.addEventListener(kind, () => (acted = true), { capture: true });
}

/**
 * Give a view an address.
 * @param {string} view the tab's name
 * @param {string[]} steps the names of the values whose change is a step, which "back" undoes
 * @param {(values: Record<string, string>) => void} go is called with the values of an address, before its tab is shown
 * @returns {(values: object, canStep?: boolean) => void} what says what is chosen now. null and "" take a value out of the address.
 *   Without canStep it is no step, as where another model has other parts.
 */
export function addressed(view, steps, go) {
  const own = { steps, go, chosen: {} };
  views.set(view, own);
  return (values, canStep = true) => change(() => merge(own.chosen, values), canStep && view === current && differs(own.chosen, values, steps));
}

/** Say which tab is shown, and what is chosen for all of them. A change of the tab or of the model is a step. */
export function tellPage(view, values) {
  const isStep = (current !== "" && view !== current) || differs(shared, values, ["model"]);
  change(() => {
    current = view;
    merge(shared, values);
  }, isStep);
}

/**
 * What the address says now: {view, values, isLink}. One that is no link was made here: what it says has been shown before, and
 * the texts that this tab of the browser keeps are at least as new as those in it.
 */
export function read() {
  const [view, query] = location.hash.slice(1).split("?", 2);
  return { view, values: Object.fromEntries(new URLSearchParams(query ?? "")), isLink: history.state !== OURS };
}

/**
 * Follow an address: tell its view what is chosen in it.
 * @returns what it says, as read() does
 */
export function follow() {
  const said = read();
  acted = false;
  clearTimeout(soon);
  soon = null;
  const view = views.get(said.view);
  if (view) view.chosen = {};
  view?.go(said.values);
  return said;
}

/**
 * Call a function when the user goes to another address: back, forward, or by a link.
 * @param {() => void} went
 */
export function onVisit(went) {
  window.addEventListener("popstate", () => went());
}

function merge(into, values) {
  Object.assign(into, values);
  for (const [key, value] of Object.entries(values)) if (value === null || value === undefined || value === "") delete into[key];
}

/** Whether a step has another value. One that had none yet has only become known. */
function differs(chosen, values, steps) {
  return steps.some((key) => key in values && chosen[key] !== undefined && String(chosen[key]) !== String(values[key] ?? ""));
}

function fragment() {
  const query = new URLSearchParams({ ...shared, ...views.get(current)?.chosen });
  return `#${current}${query.size ? `?${query}` : ""}`;
}

function change(act, isStep) {
  const before = fragment();
  act();
  if (!current || fragment() === before) return;
  if (isStep && acted) {
    if (soon !== null) write(before, "replaceState");
    write(fragment(), "pushState");
  } else soon ??= setTimeout(() => write(fragment(), "replaceState"), SOON);
}

function write(address, how) {
  clearTimeout(soon);
  soon = null;
  try {
    if (address !== location.hash) history[how](OURS, "", address);
  } catch {
    // The browser allows no more changes now: the next one is in the address again.
  }
}

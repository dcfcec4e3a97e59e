/**
 * What all views share: the model, the passage, and how tokens are chosen. Kept for this tab of the browser, so that a page that
 * is opened again, also after the explorer was started again, goes on where it was.
 *
 * Events: "model" (another model was chosen), "passage" (other tokens), "sampling" (how tokens are chosen),
 * "weights" (a model has others, or it became known which).
 */

const KEY = "explorer";
const KEPT = ["model", "text", "otherText", "typed", "translates", "sourceText", "sampling", "view", "writing"];

class Page extends EventTarget {
  folders = [];
  models = [];
  beside = []; // folders of other runs, which the explorer was not started with
  weights = {}; // by the name of each model: what the question "checkpoints" says of its weights
  model = "";
  film = { snapshots: [], losses: [], training: false }; // of the model's run: see the question "film"
  told = ""; // the step that is shown and its losses, in words
  isFrame = false; // whether another step is being drawn in the place of the one before
  step = null; // that of the snapshot that is shown in place of the model's own weights
  facts = null; // of the model: see the question "facts"
  text = "";
  sourceText = "";
  typed = { translation: false, other: false }; // whether the texts are the user's, of models that translate and of others
  translates = false; // whether the text is a translation
  otherText = ""; // the text of the models that translate, while one is chosen that does not; or the other way round
  /**
   * The tokens that the views look at: {model, ids, source, texts, sourceTexts}; where some of them were written here, also how
   * many were given. Null until there are some.
   */
  passage = null;
  sampling = { temperature: 1, top_k: 0, top_p: 1, seed: 1337 };
  view = ""; // the tab; "" until it is known which one shows most of the model
  writing = { length: 100, trees: [], filled: null }; // what the view "write" keeps: see branches.js and fill.js

  /** Take over some of these values, keep them, and tell everyone by an event. */
  set(values, event) {
    Object.assign(this, values);
    this.keep();
    if (event) this.dispatchEvent(new Event(event));
  }

  /** The model of a step: a snapshot, or without a step the one that is chosen. */
  nameAt(step) {
    const folder = this.model.lastIndexOf(": ");
    return step === null ? this.model : `${folder < 0 ? "" : this.model.slice(0, folder + 2)}step ${step}`;
  }

  /** The model whose weights are shown. */
  get shown() {
    return this.nameAt(this.step);
  }

  /** The passage as questions take it. */
  asked() {
    const { model, ids, source } = this.passage;
    return { model, ids, source };
  }

  /** Name the part of the model that the view shows: it stands behind "Model" at the head of the view. */
  trail(names) {
    this.dispatchEvent(new CustomEvent("trail", { detail: names }));
  }

  keep() {
    try {
      sessionStorage.setItem(KEY, JSON.stringify(Object.fromEntries(KEPT.map((key) => [key, this[key]]))));
    } catch {
      // The browser keeps nothing, or the text is too long for it: then it is not kept.
    }
  }

  restore() {
    let kept = null;
    try {
      kept = JSON.parse(sessionStorage.getItem(KEY));
    } catch {
      // It was kept by something else.
    }
    takeOver(this, kept, KEPT);
  }
}

/** Take over the values of these keys that are of the same type as those that are there. Lists are taken over as they are. */
function takeOver(target, kept, keys) {
  for (const key of keys) {
    const [own, value] = [target[key], kept?.[key]];
    if (typeof value !== typeof own || value === null || Array.isArray(value) !== Array.isArray(own ?? value)) continue;
    if (typeof value === "object" && own !== null && !Array.isArray(own)) takeOver(own, value, Object.keys(own));
    else target[key] = value;
  }
}

export const page = new Page();

/**
 * Begin once an element is scrolled into view, which must have a height. In a frame of a film, one that is in view begins now.
 * @param {Element} element
 * @param {() => void} begin
 * @returns {() => void} what waits no longer
 */
export function whenSeen(element, begin) {
  if (page.isFrame && isInView(element)) {
    begin();
    return () => {};
  }
  const watcher = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    begin();
  });
  watcher.observe(element);
  return () => watcher.disconnect();
}

/** Whether an element is in view now. */
export function isInView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  return bottom > 0 && top < window.innerHeight && element.checkVisibility();
}

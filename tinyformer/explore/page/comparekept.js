/** What was chosen in the view "compare", which this tab of the browser keeps. */

const KEY = "explorer.compare";
export const kept = { others: {}, length: 200, text: "", source: "", shown: "a" };

/** Take over some of these values. */
export function keep(values) {
  Object.assign(kept, values);
  try {
    sessionStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // The browser keeps nothing, or the text is too long for it: then it is not kept.
  }
}

/** Read what was kept. */
export function restore() {
  try {
    Object.assign(kept, JSON.parse(sessionStorage.getItem(KEY) ?? "{}"));
  } catch {
    sessionStorage.removeItem(KEY);
  }
}

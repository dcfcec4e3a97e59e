/** Work that waits until somebody looks. */

import { page } from "./state.js";

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

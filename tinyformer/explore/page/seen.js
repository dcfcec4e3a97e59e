/** Work that waits until somebody looks. */

/**
 * Begin once an element is scrolled into view, which must have a height.
 * @param {Element} element
 * @param {() => void} begin
 * @returns {() => void} what waits no longer
 */
export function whenSeen(element, begin) {
  const watcher = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    begin();
  });
  watcher.observe(element);
  return () => watcher.disconnect();
}

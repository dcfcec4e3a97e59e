/** The section "beam search" of the view "write". */

/** Fill the section once. */
export function begin() {}

/** Draw what the page holds now. */
export function show() {}

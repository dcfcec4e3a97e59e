/** Buttons that may do nothing for now, but keep the focus, so that the keyboard does not lose its place. */

/** Whether a button does something. */
export function able(button, is) {
  button.setAttribute("aria-disabled", String(!is));
}

/** Let a button act where it does something. */
export function onPress(button, act) {
  button.addEventListener("click", () => button.getAttribute("aria-disabled") === "true" || act());
}

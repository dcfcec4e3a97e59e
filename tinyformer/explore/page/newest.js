/** Asking while something is dragged: one question at a time, and of those that wait only the newest. */

import { latest } from "./api.js";

/**
 * A function that does its work for the newest call only, as soon as the work before is done. Unlike `latest` it gives up on
 * nothing that has begun: the server would work on it anyway.
 * @param {(...given) => Promise<void>} work
 * @param {(message: string) => void} refused is told what the server refuses, "" when work begins
 * @returns {(...given) => Promise<void>} its promise waits for the work of the newest call, also where that is a later one
 */
export function newest(work, refused) {
  const once = latest((signal, ...given) => work(...given), refused);
  let wanted = null;
  let running = null;
  const run = async () => {
    try {
      while (wanted) {
        const now = wanted;
        wanted = null;
        await once(...now);
      }
    } finally {
      running = null;
    }
  };
  return (...given) => {
    wanted = given;
    return (running ??= run());
  };
}

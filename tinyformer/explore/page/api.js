/**
 * Asking the server. Every question is a POST of JSON to ask/NAME, beside this page: the page's own address holds the token.
 */

import { answerTo, asJson, askAhead } from "./answers.js";
import { element } from "./text.js";

const trouble = document.getElementById("trouble");
let waiting = null; // what looks whether a server that was gone is back

/** An answer that says what is wrong. Its message is for people. */
export class Refusal extends Error {}

/** There was no answer. The page has said so in a line, so nobody else need. */
export class Lost extends Error {}

/**
 * The answer to a question.
 * @param {string} name of the question, such as "encode"
 * @param {object} asked what it is asked
 * @param {AbortSignal} [signal] gives up on it
 * @returns {Promise<object>} Throws Refusal where the server says that something is wrong.
 */
export async function ask(name, asked, signal) {
  return JSON.parse(await answer("text", name, asked, signal));
}

/**
 * The answer to a question about the files of a run, which may have changed since it was asked before.
 * @param {string} name
 * @param {object} asked of the model itself, whichever step is shown
 * @param {AbortSignal} [signal]
 * @returns {Promise<object>}
 */
export async function askAnew(name, asked, signal) {
  return JSON.parse(await fetched(name, JSON.stringify(asked), "text", signal));
}

/**
 * The bytes with which a question is answered, such as a model's weights. They are not to be changed: others may read them, too.
 * @param {string} name
 * @param {object} asked
 * @param {AbortSignal} [signal]
 * @returns {Promise<ArrayBuffer>}
 */
export function bytes(name, asked, signal) {
  return answer("arrayBuffer", name, asked, signal);
}

/** Ask at a step of the film what was asked about the frame that is shown, so that its answers are there when it is. */
export function askFrame(step) {
  return askAhead(step, fetched);
}

async function answer(kind, name, asked, signal) {
  const found = await answerTo(name, asked, kind, (body, isShared) => fetched(name, body, kind, isShared ? undefined : signal));
  signal?.throwIfAborted();
  return found;
}

async function fetched(name, body, kind, signal) {
  const response = await send(name, body, signal);
  return receive(response[kind]());
}

/**
 * The answers to a question that has several, each as soon as it comes.
 * @param {string} name
 * @param {object} asked
 * @param {AbortSignal} [signal]
 * @returns {AsyncGenerator<object>}
 */
export async function* stream(name, asked, signal) {
  const response = await send(name, asJson(asked), signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await receive(reader.read());
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const answer = JSON.parse(line);
        if (answer.error) throw new Refusal(answer.error);
        yield answer;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever reads no further lets the server stop
  }
}

const busy = element("progress", { id: "busy", hidden: true, "aria-label": "Computing" });
document.body.append(busy);
let pending = 0; // questions that have no answer yet

async function send(name, body, signal) {
  pending += 1;
  const soon = setTimeout(() => (busy.hidden = false), 1000);
  try {
    return await answered(name, body, signal);
  } finally {
    clearTimeout(soon);
    pending -= 1;
    busy.hidden ||= !pending;
  }
}

async function answered(name, body, signal) {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body, signal };
  const response = await receive(fetch(`ask/${name}`, request));
  if (response.ok) return response;
  if (response.status === 403) {
    lookForReturn(AGAIN);
    throw new Lost(AGAIN);
  }
  const { error } = await receive(response.json());
  throw new Refusal(error);
}

/**
 * What a promise of the network gives. If the connection is lost, the page says so in a line, and looks for its return.
 * Throws Lost then, and AbortError where the page itself gave up.
 */
async function receive(promise) {
  try {
    const value = await promise;
    if (!waiting) say("");
    return value;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lookForReturn(GONE);
    throw new Lost(error.message);
  }
}

const GONE = "The explorer does not answer. If it has ended, start it again with the same command, and open the address that it prints.";
const AGAIN = "The explorer was started again: open the address that it printed.";

/** Say what is wrong, and ask each second whether this page is answered again. */
function lookForReturn(line) {
  say(line);
  waiting ??= setInterval(look, 1000);
}

async function look() {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}", signal: AbortSignal.timeout(10_000) };
  const response = await fetch("ask/about", request).catch(() => null);
  if (!waiting) return; // another look was faster
  if (!response?.ok) {
    say(response?.status === 403 ? AGAIN : GONE);
    return;
  }
  clearInterval(waiting);
  waiting = null;
  say("");
  window.dispatchEvent(new Event("returned"));
}

/** Show a line about what is wrong with the connection, or none. */
function say(line) {
  if (trouble.textContent !== line) trouble.textContent = line;
  trouble.hidden = !line;
}

/**
 * A function that asks at most one question at a time: a new call gives up on the one before.
 * @param {(signal: AbortSignal, ...given) => Promise<void>} work
 * @param {(message: string) => void} refused is told what the server refuses, "" when it begins
 */
export function latest(work, refused) {
  let controller = null;
  return async (...given) => {
    controller?.abort();
    const own = (controller = new AbortController());
    refused("");
    try {
      await work(own.signal, ...given);
    } catch (error) {
      if (error.name === "AbortError" || error instanceof Lost) return;
      if (!(error instanceof Refusal)) throw error;
      if (!own.signal.aborted) refused(error.message); // what was given up may be answered all the same
    }
  };
}

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

/**
 * Asking the server. Every question is a POST of JSON to ask/NAME, beside this page: the page's own address holds the token.
 */

const trouble = document.getElementById("trouble");
let waiting = null; // what looks whether a server that was gone is back

/** An answer that says what is wrong. Its message is for people. */
export class Refusal extends Error {}

/**
 * The answer to a question.
 * @param {string} name of the question, such as "encode"
 * @param {object} asked what it is asked
 * @param {AbortSignal} [signal] gives up on it
 * @returns {Promise<object>} Throws Refusal where the server says that something is wrong.
 */
export async function ask(name, asked, signal) {
  const response = await send(name, asked, signal);
  return receive(response.json());
}

/**
 * The answers to a question that has several, each as soon as it comes.
 * @param {string} name
 * @param {object} asked
 * @param {AbortSignal} [signal]
 * @returns {AsyncGenerator<object>}
 */
export async function* stream(name, asked, signal) {
  const response = await send(name, asked, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
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
}

async function send(name, asked, signal) {
  const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked), signal };
  const response = await receive(fetch(`ask/${name}`, request));
  if (response.ok) return response;
  const { error } = await receive(response.json());
  if (response.status === 403) say(`${error}. The explorer was probably started again.`);
  throw new Refusal(error);
}

/** What a promise of the network gives. If the connection is lost, the page says so in a line, and looks for its return. */
async function receive(promise) {
  try {
    const value = await promise;
    if (!waiting) say("");
    return value;
  } catch (error) {
    if (error.name !== "AbortError" && !waiting) lost();
    throw error;
  }
}

function lost() {
  say("The explorer does not answer. If it has ended, start it again with the same command, and open the address that it prints.");
  waiting = setInterval(async () => {
    const response = await fetch("ask/about", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" }).catch(() => null);
    if (!response) return;
    clearInterval(waiting);
    waiting = null;
    say(response.ok ? "" : "The explorer was started again: open the address that it printed.");
    if (response.ok) window.dispatchEvent(new Event("returned"));
  }, 1000);
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
      if (error instanceof Refusal) refused(error.message);
      else if (error.name !== "AbortError" && !(error instanceof TypeError && !navigator.onLine) && !isNetwork(error)) throw error;
    }
  };
}

function isNetwork(error) {
  return error instanceof TypeError && /fetch|network|body stream|load failed/i.test(error.message);
}

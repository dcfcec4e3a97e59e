/** The view "inside": what the model holds while it reads the passage, and the tables that it reads it with. */

import { ask, latest } from "./api.js";
import { isInView, page, whenSeen } from "./state.js";
import { about, counted, element, troubleLine } from "./text.js";
import { drawNorms } from "./norms.js";
import { drawLens } from "./lens.js";
import { drawAttribution } from "./attribution.js";
import { drawNamedHeads } from "./namedheads.js";
import { drawEntropy } from "./entropy.js";
import { drawStates } from "./states.js";
import { drawEmbeddings, lightPassage } from "./map.js";
import { drawNeurons } from "./neurons.js";
import { drawSentences } from "./sentences.js";
import { drawPositions } from "./positions.js";

/**
 * The parts of the view. Those of the passage are drawn again when the passage changes, the others when the model does. Each
 * draws into a box and returns what takes it away, or a sentence where the model has nothing to show; "" hides the part.
 */
const PARTS = [
  { id: "norms", title: "Residual stream norm", of: "passage", draw: drawNorms, say: "Euclidean norm at each token", more: "The colour's strength follows the logarithm of the norm." },
  { id: "lens", title: "Logit lens", of: "passage", draw: drawLens, say: "Likeliest token if the model ended after this layer", more: "The stronger the colour, the likelier. The last row is the model's own prediction. Choose a cell for its ten likeliest tokens." },
  {
    id: "attribution", title: "Direct logit attribution", of: "passage", draw: drawAttribution, say: "What each part adds to the logit",
    more: "Blue adds, orange subtracts. The scale of the final norm is held fixed. Choose a second token to explain a difference of logits, and a head to open its attention.",
  },
  { id: "heads", title: "Named heads", of: "passage", draw: drawNamedHeads, say: "Heads whose score reaches a threshold", more: "Choose a head to open its attention." },
  {
    id: "neurons", title: "Neurons", of: "passage", draw: drawNeurons, say: "Units of the MLPs, and the tokens that excite them",
    more: "A positive neuron raises the logits of some tokens and lowers others: a number is what one unit of activation adds before the final norm divides by its scale, relative to the mean over all tokens.",
  },
  { id: "entropy", title: "Entropy and loss", of: "passage", draw: drawEntropy, say: "Nats at each token", more: "Above: the entropy of the prediction. Below: the loss of the token that follows." },
  { id: "states", title: "Recurrent state", of: "passage", draw: drawStates, say: "Units by tokens", more: "Blue is positive, red negative. The stronger the colour, the larger the value." },
  { id: "embeddings", title: "Token embeddings", of: "model", draw: drawEmbeddings, say: "First two principal components", more: "Rings mark the tokens of the text; red dots mark matches of the search." },
  { id: "sentences", title: "Sentence embeddings", of: "model", draw: drawSentences, say: "First two principal components", more: "Choose a sentence: red dots mark its nearest neighbours by cosine similarity of the full vectors." },
  { id: "positions", title: "Positions", of: "model", draw: drawPositions, say: "", more: "" },
];

const boxes = new Map(); // of each part: its elements, and what takes away what was drawn in it
let refuse = null; // says what is wrong
let cut = null; // a line about a text that is longer than what is shown
let drawn = { passage: null, model: null };

/** Fill the section of this view once. */
export function begin(section) {
  const [trouble, say] = troubleLine();
  refuse = say;
  cut = element("p", { class: "note", id: "inside-cut", hidden: true });
  section.append(trouble, cut);
  for (const { id, title, say, more } of PARTS) {
    const [box, note] = [element("div"), about(say, more)];
    const part = element("section", { id: `inside-${id}`, "aria-labelledby": `inside-${id}-title`, hidden: true });
    part.append(element("h2", { id: `inside-${id}-title` }, title), note, box);
    section.append(part);
    boxes.set(id, { part, note, box, remove: null, forget: null });
  }
  page.addEventListener("part", ({ detail }) => {
    const take = drawn.passage === page.passage && boxes.get(detail.name).remove?.take;
    page.wanted = take ? null : detail; // a part that is drawn later takes it then
    if (take) take(detail);
    goTo(boxes.get(detail.name).part);
  });
  page.addEventListener("model", () => {
    clear("passage");
    clear("model");
    page.wanted = null;
    drawn = { passage: null, model: null };
  });
}

/** Draw what the page holds now. It is called when the view is chosen, and when the passage changes while it is. */
export function show() {
  const { passage, facts } = page;
  if (!passage) return;
  if (drawn.model !== facts) {
    drawn.model = facts;
    draw("model", { model: page.model, facts });
  }
  if (drawn.passage !== passage) {
    drawn.passage = passage;
    lightPassage(passage);
    read(passage);
  }
}

const read = latest(async (signal, passage) => {
  const found = await ask("inside", { passage: page.asked() }, signal);
  if (page.passage !== passage) return;
  const texts = passage.texts.slice(found.first, found.first + found.count);
  const asked = { model: passage.model, ids: passage.ids, source: passage.source };
  const recurrent = found.states.length ? "; the state holds those before" : ", which are all that it reads here";
  cut.textContent = `Of the ${counted(passage.ids.length, "token")}, the last ${counted(found.count, "is", "are")} shown${recurrent}.`;
  cut.hidden = !found.first;
  draw("passage", { ...found, asked, passage, texts, facts: page.facts });
}, (message) => {
  refuse(message);
  if (!message) return;
  cut.hidden = true;
  clear("passage");
});

/** Draw all parts of the passage, or of the model. In a frame of a film, those out of view stay as they are until they are seen. */
function draw(of, found) {
  const isFrame = page.isFrame;
  const parts = PARTS.filter((part) => part.of === of);
  const hidden = parts.filter(({ id }) => isFrame && boxes.get(id).remove && !isInView(boxes.get(id).box));
  for (const { id } of parts) {
    const { box } = boxes.get(id);
    box.style.minHeight = isFrame ? `${box.offsetHeight}px` : ""; // nothing may jump
  }
  for (const part of parts) {
    const place = boxes.get(part.id);
    place.forget?.();
    place.forget = hidden.includes(part) ? whenSeen(place.box, () => drawPart(part, found)) : null;
    if (!place.forget) drawPart(part, found);
  }
}

/** Scroll to a part as soon as it is shown. */
function goTo(part, tries = 100) {
  if (part.checkVisibility({ visibilityProperty: true })) part.scrollIntoView();
  else if (tries) setTimeout(goTo, 50, part, tries - 1);
}

/** Draw a part. One that can move takes the numbers of another step into what is there. */
function drawPart(part, found) {
  const place = boxes.get(part.id);
  if (page.isFrame && place.remove?.again) {
    place.remove.again();
    return;
  }
  place.remove?.();
  place.remove = null;
  place.box.replaceChildren();
  place.part.hidden = false;
  const result = part.draw(place.box, found);
  const isDrawn = typeof result !== "string";
  if (isDrawn) place.remove = result;
  else place.box.replaceChildren(element("p", { class: "note" }, result));
  place.part.hidden = result === "";
  place.note.hidden = !isDrawn || !part.say;
}

function clear(of) {
  for (const part of PARTS) {
    if (part.of !== of) continue;
    const place = boxes.get(part.id);
    place.forget?.();
    place.remove?.();
    place.remove = place.forget = null;
    place.box.replaceChildren();
  }
}

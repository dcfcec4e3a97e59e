/** The view "inside": what the model holds while it reads the passage, and the tables that it reads it with. */

import { ask, latest } from "./api.js";
import { page } from "./state.js";
import { counted, element } from "./text.js";
import { troubleLine } from "./trouble.js";
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
import { isInView, whenSeen } from "./seen.js";

/**
 * The parts of the view. Those of the passage are drawn again when the passage changes, the others when the model does. Each
 * draws into a box and returns what takes it away, or a sentence where the model has nothing to show; "" hides the part.
 */
const PARTS = [
  {
    id: "norms", title: "How long the residual stream is", of: "passage", draw: drawNorms,
    say: "Each cell is the Euclidean norm of a token's vector after the embeddings or after a layer: the stronger the colour, the " +
      "longer the vector (on a logarithmic scale). The column beside the map is the mean over the tokens.",
  },
  {
    id: "lens", title: "What each layer would predict (logit lens)", of: "passage", draw: drawLens,
    say: "Each cell is the likeliest token if the model ended after this row: the stronger the colour, the likelier. The last row " +
      "is the model's own prediction. Click a cell, or press Enter in it, to see the ten likeliest.",
  },
  {
    id: "attribution", title: "Who wrote this token (direct logit attribution)", of: "passage", draw: drawAttribution,
    say: "Choose a token: the bars are what each part of the model adds to a logit of the prediction made after it, with the scale " +
      "of the final norm held at what it is there. Blue adds, orange takes away. A logit counts only beside others, so choose a " +
      "second token, too: then the bars say what speaks for the one against the other. Click a head to look at it in Attention.",
  },
  {
    id: "heads", title: "What the heads do (named heads)", of: "passage", draw: drawNamedHeads,
    say: "A head has a name where it does one thing: where a score of the first table reaches its threshold. Click a head to look " +
      "at it in Attention.",
  },
  {
    id: "neurons", title: "What a neuron does", of: "passage", draw: drawNeurons,
    say: "A neuron is a unit inside of a feed-forward network (MLP). Choose a token, and one of the neurons that write most there, or " +
      "name any. Its output weights raise the logits of some tokens, and lower those of others, where it is positive: a number is " +
      "what one unit of activation adds, before the final norm divides by its scale, compared with all tokens. Below stand the " +
      "tokens of the data that excite it most.",
  },
  {
    id: "entropy", title: "How sure the model is along the text", of: "passage", draw: drawEntropy,
    say: "The upper bar over a token is the entropy of the prediction made there, in nats: a short bar is a sure model. The lower " +
      "bar is the loss of the token that was to be predicted: a long bar is a surprise.",
  },
  {
    id: "states", title: "The state of the recurrent network over time", of: "passage", draw: drawStates,
    say: "Each row is a unit of the state, each column the state after a token: blue is above zero, red below, and the stronger " +
      "the colour, the larger the number.",
  },
  {
    id: "embeddings", title: "The tokens' embeddings in two dimensions", of: "model", draw: drawEmbeddings,
    say: "Each point is a token of the vocabulary, on the two directions in which the embeddings differ most (principal " +
      "components): near points are similar embeddings, as far as two dimensions can show. Rings mark the tokens of the text, and " +
      "red dots those that the search finds.",
  },
  {
    id: "sentences", title: "Sentences by their meaning", of: "model", draw: drawSentences,
    say: "Each point is a sentence, on the two directions in which the sentences' vectors differ most. Choose one below: the ring " +
      "marks it, red dots mark those nearest to it by the cosine of the whole vectors, and the list tells them.",
  },
  {
    id: "positions", title: "Positions", of: "model", draw: drawPositions, say: "",
  },
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
  section.append(element("p", { class: "note" }, "Each picture below shows what the model holds while it reads the text, and the sentence above it says how to read it. Point at a cell, or move to it with the arrow keys, to read its number."), trouble, cut);
  for (const { id, title, say } of PARTS) {
    const [box, note] = [element("div"), element("p", { class: "note" }, say)];
    const part = element("section", { id: `inside-${id}`, "aria-labelledby": `inside-${id}-title`, hidden: true });
    part.append(element("h2", { id: `inside-${id}-title` }, title), note, box);
    section.append(part);
    boxes.set(id, { part, note, box, remove: null, forget: null });
  }
  page.addEventListener("part", ({ detail }) => {
    page.wanted = detail; // where it is drawn later
    boxes.get(detail.name).remove?.take?.(detail);
    goTo(boxes.get(detail.name).part);
  });
  page.addEventListener("model", () => {
    clear("passage");
    clear("model");
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
  place.note.hidden = !isDrawn || !place.note.textContent;
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

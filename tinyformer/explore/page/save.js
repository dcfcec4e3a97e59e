/** Saving a picture as a file: PNG of what is drawn on a canvas, SVG of all else. Each picture has a small button for it. */

import { page } from "./state.js";
import { svgOf, svgOfCanvas } from "./svgpicture.js";
import { element } from "./text.js";

const pictures = new WeakMap(); // of each button that saves a picture: its title, and what gives it as an SVG

const FONT = "ui-monospace, monospace";
const EDGE = 12; // around a picture, in pixels
const LARGEST = 2048; // pixels: a side of a picture up to which it is drawn twice as fine

/**
 * A button that saves a picture as PNG.
 * @param {() => string} title what the picture shows; the file's name is made of it
 * @param {() => (object|Promise<object>)} picture gives what pngOf takes, without the title; null: there is nothing to save
 */
export function savePng(title, picture) {
  const drawn = async () => {
    const found = await picture();
    return found && pngOf({ title: dated(title()), ...found });
  };
  return button("PNG", title, async () => {
    const canvas = await drawn();
    return canvas && new Promise((done) => canvas.toBlob(done, "image/png"));
  }, async () => {
    const canvas = await drawn();
    return canvas && svgOfCanvas(canvas);
  });
}

/** The pictures of a part of the page that can be saved now: of each its title, and what gives it as the text of an SVG. */
export function picturesIn(part) {
  const shown = [...part.querySelectorAll(".save")].filter((one) => one.checkVisibility({ visibilityProperty: true }));
  return shown.map((one) => pictures.get(one));
}

/** Name the buttons that are seen by what they save, for screen readers. */
function nameButtons() {
  naming = null;
  for (const one of document.querySelectorAll(".save")) {
    const { kind, title } = pictures.get(one);
    if (one.checkVisibility()) one.setAttribute("aria-label", `Save ${kind}: ${title()}`);
  }
}

let naming = null; // waits until the page has changed
new MutationObserver(() => {
  naming ??= setTimeout(nameButtons, 100);
}).observe(document.body, { subtree: true, childList: true, characterData: true, attributeFilter: ["hidden"] });

/** A title that says of which step the picture is. */
function dated(title) {
  return page.step === null ? title : `${title} · ${page.told}`;
}

/**
 * A button that saves elements of the page as SVG, all of them, also what is scrolled out of sight.
 * @param {() => string} title what the picture shows; the file's name is made of it
 * @param {() => Element[]} parts the elements
 */
export function saveSvg(title, parts) {
  const made = () => svgOf(dated(title()), parts());
  return button("SVG", title, () => new Blob([made()], { type: "image/svg+xml" }), made);
}

function button(kind, title, make, asSvg) {
  const made = element("button", { type: "button", class: "save", title: `Save this picture as ${kind}` }, `Save ${kind}`);
  pictures.set(made, { kind, title, asSvg });
  made.addEventListener("focus", nameButtons);
  made.addEventListener("click", async () => {
    const blob = await make();
    if (blob) download(blob, `${slug(`${page.shown} ${title()}`)}.${kind.toLowerCase()}`);
  });
  return made;
}

export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A text as the name of a file: "runs/char_gpt: best Layer 1, head 2" gives "runs-char_gpt-best-layer-1-head-2". */
export function slug(text) {
  return text.toLowerCase().replace(/[^\p{L}\p{N}_]+/gu, "-").replace(/^-|-$/g, "").slice(0, 100) || "picture";
}

/**
 * A canvas with a picture, its title above it, and what explains it below.
 * @param {object} given
 * @param {string} given.title
 * @param {string[]} [given.lines] of text between the title and the picture, such as the names of its axes
 * @param {{width: number, height: number}} given.size of the picture in pixels
 * @param {(pen: CanvasRenderingContext2D) => void} given.draw draws the picture from (0, 0) on
 * @param {[number, string][]} [given.legend] strengths of the colour from -1 to 1, each with its number as text
 * @param {string} [given.note] a text below the picture
 */
function pngOf({ title, lines = [], size, draw, legend = [], note = "" }) {
  const canvas = element("canvas");
  const pen = canvas.getContext("2d");
  const width = Math.max(size.width, 360);
  pen.font = `13px ${FONT}`;
  const above = lines.flatMap((line) => wrapped(pen, line, width));
  const below = wrapped(pen, note, width);
  pen.font = `bold 15px ${FONT}`;
  const heads = wrapped(pen, title, width);
  const top = EDGE + 20 * heads.length + 17 * above.length + 6;
  const keys = legend.length ? 26 : 0;
  const full = { width: width + 2 * EDGE, height: top + size.height + 6 + keys + 17 * below.length + EDGE };
  const fine = Math.max(full.width, full.height) > LARGEST ? 1 : 2;
  Object.assign(canvas, { width: full.width * fine, height: full.height * fine });
  pen.scale(fine, fine);
  const { paper, ink } = colours();
  pen.fillStyle = paper;
  pen.fillRect(0, 0, full.width, full.height);
  pen.fillStyle = ink;
  pen.textBaseline = "top";
  pen.font = `bold 15px ${FONT}`;
  heads.forEach((line, i) => pen.fillText(line, EDGE, EDGE + 20 * i));
  pen.font = `13px ${FONT}`;
  above.forEach((line, i) => pen.fillText(line, EDGE, EDGE + 20 * heads.length + 17 * i));
  below.forEach((line, i) => pen.fillText(line, EDGE, top + size.height + 6 + keys + 17 * i));
  drawLegend(pen, legend, EDGE, top + size.height + 8);
  pen.translate(EDGE, top);
  pen.beginPath();
  pen.rect(0, 0, size.width, size.height);
  pen.clip();
  draw(pen);
  return canvas;
}

/** Squares of a colour's strengths, each with its number. */
function drawLegend(pen, legend, x, y) {
  const { ink, high, bad, line } = colours();
  pen.textBaseline = "middle";
  for (const [strength, text] of legend) {
    pen.globalAlpha = Math.abs(strength);
    pen.fillStyle = strength < 0 ? bad : `rgb(${high})`;
    pen.fillRect(x, y, 16, 16);
    pen.globalAlpha = 1;
    pen.strokeStyle = line;
    pen.strokeRect(x + 0.5, y + 0.5, 15, 15);
    pen.fillStyle = ink;
    pen.fillText(text, x + 21, y + 9);
    x += 36 + pen.measureText(text).width;
  }
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["paper", "ink", "high", "bad", "line"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** A text as lines of at most so many pixels, cut between words. */
function wrapped(pen, text, width) {
  const lines = [];
  for (const word of text.split(" ").filter(Boolean)) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && pen.measureText(longer).width <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

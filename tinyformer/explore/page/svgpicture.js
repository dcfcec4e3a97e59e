/** A part of the page as an SVG picture that needs no style sheet: its texts, boxes, canvases and pictures, where they stand. */

const SVG = "http://www.w3.org/2000/svg";
const EDGE = 12; // around the picture, in pixels
const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "white-space"];
const measuring = document.createElement("canvas").getContext("2d");

/**
 * The text of an SVG file.
 * @param {string} title what the picture shows
 * @param {Element[]} parts of the page. Also what is scrolled out of sight is drawn, but nothing that is hidden.
 */
export function svgOf(title, parts) {
  const drawing = { shapes: [], left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
  parts.forEach((part) => add(drawing, part));
  const page = getComputedStyle(document.body);
  const [x, y] = [drawing.left - EDGE, drawing.top - 2 * EDGE - 18];
  measuring.font = "bold 15px monospace";
  const width = Math.max(drawing.right - x, measuring.measureText(title).width + EDGE) + EDGE;
  const height = drawing.bottom - y + EDGE;
  const head = shape("text", { x: x + EDGE, y: y + 18 + EDGE / 2, "font-size": 15, "font-weight": "bold", "font-family": "monospace", fill: page.color }, title);
  const svg = shape("svg", { viewBox: `${x} ${y} ${width} ${height}`, width, height },
    shape("title", {}, title), shape("rect", { x, y, width, height, fill: page.backgroundColor }), head, ...drawing.shapes);
  return serialized(svg);
}

/** A canvas as the text of an SVG file, at half of its pixels where it is drawn twice as fine. */
export function svgOfCanvas(canvas) {
  const [width, height] = [canvas.width / 2, canvas.height / 2];
  const image = shape("image", { width, height, href: canvas.toDataURL() });
  return serialized(shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, image));
}

/**
 * Pictures that follow each other without end, as one SVG file without a script. Where it is not played, the last one is seen.
 * @param {string} title
 * @param {string[]} frames the text of an SVG file each
 * @param {number} seconds that each is seen
 */
export function filmOf(title, frames, seconds) {
  const sizes = frames.map((frame) => frame.match(/ width="([\d.]+)" height="([\d.]+)"/).slice(1).map(Number));
  const [width, height] = [0, 1].map((side) => Math.max(...sizes.map((size) => size[side])));
  const groups = frames.map((frame, i) => {
    const [from, to] = [i, i + 1].map((at) => at / frames.length);
    const times = [0, from, to].filter((time, at, all) => time < 1 && all.indexOf(time) === at);
    const turns = shape("animate", {
      attributeName: "visibility", calcMode: "discrete", dur: `${seconds * frames.length}s`, repeatCount: "indefinite",
      keyTimes: times.map((time) => Number(time.toFixed(6))).join(";"), values: times.map((time) => (time === from ? "visible" : "hidden")).join(";"),
    });
    return filled(shape("g", { visibility: i === frames.length - 1 ? "visible" : "hidden" }, turns), frame);
  });
  return filled(shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, shape("title", {}, title)), groups.join(""));
}

/** A shape as text. Characters that XML does not have, such as those of a terminal's colours, are replaced. */
function serialized(made) {
  return new XMLSerializer().serializeToString(made).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
}

/** The text of a shape with more of it at its end: text, as to read it into the page would apply its styles there. */
function filled(made, more) {
  const text = serialized(made);
  return `${text.slice(0, text.lastIndexOf("</"))}${more}${text.slice(text.lastIndexOf("</"))}`;
}

function shape(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, typeof value === "number" ? Number(value.toFixed(2)) : value);
  made.append(...children);
  return made;
}

/** Put a shape into the drawing, which grows around it. */
function put(drawing, { left, top, right, bottom }, made) {
  drawing.shapes.push(made);
  drawing.left = Math.min(drawing.left, left);
  drawing.top = Math.min(drawing.top, top);
  drawing.right = Math.max(drawing.right, right);
  drawing.bottom = Math.max(drawing.bottom, bottom);
}

function add(drawing, node) {
  if (node.nodeType === Node.TEXT_NODE) addText(drawing, node);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(".save, input:not([type='range']), select, textarea")) return;
  const style = getComputedStyle(node);
  if (style.display === "none" || style.visibility === "hidden") return;
  const box = node.getBoundingClientRect();
  if (node.localName === "svg") {
    put(drawing, box, shape("g", { transform: `translate(${box.left} ${box.top})` }, ...copies(node)));
    return;
  }
  if (node.localName === "input") {
    addSlider(drawing, box, node, style);
    return;
  }
  addBox(drawing, box, style);
  if (node.localName === "canvas") {
    const image = shape("image", { x: box.left, y: box.top, width: box.width, height: box.height, href: node.toDataURL(), preserveAspectRatio: "none" });
    image.style.imageRendering = style.imageRendering;
    put(drawing, box, image);
  } else node.childNodes.forEach((child) => add(drawing, child));
}

/** A slider as a bar, as long as its value, in its rail. */
function addSlider(drawing, box, { value, min, max }, { accentColor, borderTopColor }) {
  const bar = (part, fill) => put(drawing, box, shape("rect", { x: box.left, y: (box.top + box.bottom) / 2 - 3, width: part * box.width, height: 6, rx: 3, fill }));
  bar(1, borderTopColor);
  bar((value - min) / (max - min), accentColor);
}

/** The background and the border of an element, if it has any. */
function addBox(drawing, box, style) {
  const isSeen = (colour) => !/^transparent$|^rgba\(.*, 0\)$|\/ 0\)$/.test(colour);
  const border = parseFloat(style.borderTopWidth) && style.borderTopStyle !== "none" && isSeen(style.borderTopColor);
  if (style.boxShadow !== "none") { // the mark of what is chosen
    put(drawing, box, shape("rect", { x: box.left - 1, y: box.top - 1, width: box.width + 2, height: box.height + 2, rx: 3, fill: "none", stroke: style.boxShadow.match(/^[a-z]+\([^)]*\)/)?.[0] ?? style.color, "stroke-width": 2 }));
  }
  if (!box.width || !box.height || (!border && !isSeen(style.backgroundColor))) return;
  put(drawing, box, shape("rect", {
    x: box.left, y: box.top, width: box.width, height: box.height, rx: parseFloat(style.borderTopLeftRadius) || 0,
    fill: isSeen(style.backgroundColor) ? style.backgroundColor : "none",
    ...(border ? { stroke: style.borderTopColor, "stroke-width": style.borderTopWidth } : {}),
    ...(border && style.borderTopStyle === "dashed" ? { "stroke-dasharray": "4 3" } : {}),
  }));
}

/** The lines of a text, each where it stands. */
function addText(drawing, node) {
  if (!node.data.trim()) return;
  const style = getComputedStyle(node.parentElement);
  measuring.font = style.font;
  const { fontBoundingBoxAscent: ascent } = measuring.measureText("x");
  for (const { text, box } of linesOf(node)) {
    const line = shape("text", {
      x: box.left, y: box.top + ascent, fill: style.color, "font-family": style.fontFamily, "font-size": style.fontSize, "font-weight": style.fontWeight,
    }, text);
    line.style.whiteSpace = "pre";
    put(drawing, box, line);
  }
}

function linesOf(node) {
  const range = document.createRange();
  const boxOf = (from, to) => {
    range.setStart(node, from);
    range.setEnd(node, to);
    return range.getBoundingClientRect();
  };
  range.selectNodeContents(node);
  const [only, ...others] = range.getClientRects();
  if (!only) return [];
  if (!others.length) return [{ text: node.data, box: only }];
  const lines = [];
  let at = 0;
  for (const letter of node.data) {
    const box = boxOf(at, at + letter.length);
    at += letter.length;
    if (!box.width) continue;
    const line = lines.at(-1);
    if (line && Math.abs(line.box.top - box.top) < box.height / 2) {
      line.text += letter;
      line.box = { ...line.box, right: box.right };
    } else lines.push({ text: letter, box: { left: box.left, top: box.top, right: box.right, bottom: box.bottom, width: box.width, height: box.height } });
  }
  return lines;
}

/** Copies of what an SVG on the page holds, with its styles put in. */
function copies(svg) {
  return [...svg.children].map((child) => {
    const copy = child.cloneNode(false);
    const style = getComputedStyle(child);
    for (const name of STYLES) copy.style.setProperty(name, style.getPropertyValue(name));
    for (const { name } of [...copy.attributes]) if (name === "class" || name.startsWith("data-")) copy.removeAttribute(name);
    if (child.children.length) copy.append(...copies(child));
    else copy.textContent = child.textContent;
    return copy;
  });
}

/** Where each array of a forward pass stands in the view "numbers", in units that are pixels before one zooms. */

const [GAP, TITLE, BETWEEN_HEADS, MARGIN] = [14, 15, 3, 12];
const LABEL = 72; // free on the left, for the names of layers
export const TOKENS = new Set(["token", "query", "key"]); // axes
const FIRST = /^attention_norm|\.(query_key_value|query_norm|key_norm|queries|keys|values)/; // of the attention: what is made before the scores

/** How long a side of a map is. Equal sides are equally long, and a larger one grows only with the root of its size. */
function lengthOf(size, axis) {
  return (TOKENS.has(axis) ? 12 : 5.2) * Math.sqrt(size);
}

/**
 * An array as maps of rows and columns, one for each head.
 * @returns {{heads: number, rows: number, columns: number, down: string, right: string}} with the axes down and right
 */
export function mapsOf({ shape, axes }) {
  const isColumn = shape.length === 1 && TOKENS.has(axes[0]);
  const [[rows, columns], [down, right]] = isColumn ? [[shape[0], 1], [axes[0], ""]] : [[1, ...shape].slice(-2), ["", ...axes].slice(-2)];
  return { heads: shape.slice(0, -2).reduce((product, size) => product * size, 1), rows, columns, down, right };
}

/** A box around an array: {array, heads, rows, columns, width, height (of one map), across (of all maps), pitch (from map to map)}. */
function boxOf(array, tallest) {
  const maps = mapsOf(array);
  let [width, height] = [lengthOf(maps.columns, maps.right), lengthOf(maps.rows, maps.down)];
  if (isConstant(array) && height > tallest) [width, height] = [(width * tallest) / height, tallest]; // beside its step
  const pitch = width + BETWEEN_HEADS;
  return { array, ...maps, width, height, pitch, across: maps.heads * pitch - BETWEEN_HEADS };
}

/** One column of boxes, for narrow screens. */
export function asList(arrays, room) {
  let y = TITLE;
  const boxes = arrays.map((array) => {
    const box = boxOf(array, 120);
    const grow = Math.min(3, (room - MARGIN) / box.across);
    for (const key of ["width", "height", "pitch", "across"]) box[key] *= grow;
    Object.assign(box, { x: MARGIN, y, free: room - MARGIN - box.across });
    y += box.height + TITLE + GAP;
    return box;
  });
  return { boxes, lines: [], labels: [], width: room, height: y - GAP };
}

/**
 * The residual stream down the middle, the attention of each layer on its left, and the feed-forward network on its right. What is
 * made from the stream goes outwards in one row, and comes back in the next.
 * @returns {{boxes: object[], lines: [object, object][], labels: object[], width: number, height: number}} boxes with their places x and
 *   y, lines from an array to the one that reads it, labels {text, x, y}
 */
export function asStream(arrays) {
  const length = lengthOf(arrays[0].shape[0], "token"); // the first are the ids
  const row = length + TITLE + 10;
  const tallest = arrays.some(({ name }) => name.endsWith(".bias")) ? length - TITLE - 8 : length; // a bias stands below its weight
  const layers = arrays.filter(({ name }) => /^blocks\.\d+$/.test(name)).length;
  const begin = Math.max(0, arrays.findIndex(({ name }) => name.startsWith("blocks.")));
  const first = arrays.slice(0, begin).findLast(({ source }) => source) ?? arrays[0]; // of the stream
  const groups = new Map(); // of each row and side: the arrays, from the stream outwards
  const put = (line, side, array, isInwards) => {
    const key = `${line} ${side}`;
    if (!groups.has(key)) groups.set(key, { line, side, arrays: [] });
    groups.get(key).arrays[isInwards ? "unshift" : "push"](array);
  };
  for (const array of arrays) {
    const [, at, part = ""] = array.name.match(/^blocks\.(\d+)\.?(.*)$/) ?? [];
    const line = 2 * Number(at);
    if (array === first) put(1, 0, array);
    else if (at !== undefined && part === "") put(line + 3, 0, array);
    else if (part === "sum") put(line + 2, 0, array);
    else if (part.startsWith("attention")) {
      const isOutwards = FIRST.test(part);
      put(line + (isOutwards ? 1 : 2), -1, array, !isOutwards);
    } else if (at !== undefined) {
      const isOutwards = /norm|up|gate(\.|$)/.test(part);
      put(line + (isOutwards ? 2 : 3), 1, array, !isOutwards);
    } else if (/^(constant|position)/.test(array.name)) put(0, 1, array, true);
    else if (arrays.indexOf(array) < begin) put(0, -1, array, true);
    else if (array.name === "norm") put(2 * layers + 2, 0, array);
    else put(2 * layers + 2, array.name.startsWith("norm") ? -1 : 1, array);
  }
  const boxes = new Map();
  const middle = boxOf(first, length).across / 2;
  for (const { line, side, arrays: group } of groups.values()) {
    let x = side === 0 ? -middle : middle + 2 * GAP;
    let lowest = 0; // of a stack of parameters, such as a weight and its bias
    group.sort((a, b) => (baseOf(a) === baseOf(b) ? b.shape.length - a.shape.length : 0)); // a weight before its bias
    group.forEach((array, i) => {
      const box = boxOf(array, tallest);
      const y = line * row;
      const isStacked = i > 0 && isConstant(array) && isConstant(group[i - 1]) && lowest + box.height + TITLE < row + y;
      if (i > 0 && !isStacked) x += boxes.get(group[i - 1]).reach + GAP;
      box.y = isStacked ? lowest + TITLE : y;
      lowest = box.y + box.height;
      box.reach = Math.max(box.across, isStacked ? boxes.get(group[i - 1]).reach : 24);
      box.x = side < 0 ? -x - box.across : x;
      boxes.set(array, box);
    });
  }
  const labels = Array.from({ length: layers }, (_, at) => ({ text: `layer ${at + 1}`, y: (2 * at + 1) * row }));
  return framed([...boxes.values()], linesOf(boxes), labels);
}

const isConstant = ({ source, name }) => !source && name !== "ids";

/** What a weight and a bias have in common. */
const baseOf = ({ name }) => name.replace(/\.(weight|bias)$/, " parameters");

/** Say of each box how much is free beside it: a long name may stand there. */
function measureFree(boxes, width) {
  for (const box of boxes) {
    const isBeside = ({ x, y, height }) => x > box.x && y - TITLE < box.y && y + height > box.y - TITLE; // of its name
    const next = boxes.filter(isBeside).map(({ x }) => x);
    box.free = Math.min(...next.map((left) => left - 4), width) - box.x - box.across;
  }
}

/** From each array to those that read it; parameters stand beside their steps, and a line from the ids to the losses would cross all. */
function linesOf(boxes) {
  return [...boxes.values()].flatMap((box) => box.array.inputs.filter((input) => !isConstant(input) && (input.name !== "ids" || box.array.name !== "losses")).map((input) => [boxes.get(input), box]));
}

/** The boxes moved so that the first begins at the top, below its title, and beside the labels. */
function framed(boxes, lines, labels) {
  const left = Math.min(...boxes.map(({ x }) => x)) - LABEL;
  const top = Math.min(...boxes.map(({ y }) => y)) - TITLE;
  for (const box of boxes) {
    box.x -= left;
    box.y -= top;
  }
  const width = Math.max(...boxes.map(({ x, across }) => x + across));
  measureFree(boxes, width);
  const height = Math.max(...boxes.map(({ y, height }) => y + height));
  return { boxes, lines, labels: labels.map(({ text, y }) => ({ text, x: 0, y: y - top })), width, height };
}

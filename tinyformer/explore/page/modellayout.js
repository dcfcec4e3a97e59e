/** Where the parts of the picture of a model stand: the residual stream along the picture, heads on one side, MLPs on the other. */

const NARROW = 600; // pixels: below it the stream runs down and not across
const GAP = 4;

/**
 * The layout of a list of stacks in a room: from left to right, or from top to bottom where it is narrow.
 * @param {object[]} stacks {name, isSource, isRecurrent, texts, maps, blocks}
 * @param {{width: number, height: number}} room in pixels
 * @param {number|null} enlarged the layer that is shown alone
 * @param {number} outputs the number of predicted tokens
 */
export function layoutOf(stacks, room, enlarged, outputs) {
  const isWide = room.width >= NARROW;
  const layers = Math.max(...stacks.map(({ maps }) => maps.length));
  const count = isWide ? Math.min(10, outputs) : Math.min(6, outputs);
  const sizes = isWide ? { tokens: 100, fan: 44, outputs: 206 } : { tokens: 20, fan: 22, outputs: count * 21 + 4 };
  const height = isWide ? Math.max(360 * Math.min(stacks.length, 1.5), room.height) : Math.max(room.height, sizes.tokens + sizes.outputs + 50 + 62 * (enlarged === null ? layers - 1 : 1));
  const [along, across] = isWide ? [room.width, height] : [height, room.width];
  const turn = (x, y, width, length) => (isWide ? { x, y, width, height: length } : { x: y, y: x, width: length, height: width });
  const point = (x, y) => (isWide ? `${x.toFixed(1)} ${y.toFixed(1)}` : `${y.toFixed(1)} ${x.toFixed(1)}`);
  const curve = (x, y, z, w) => `M${point(x, y)}C${point((x + z) / 2, y)} ${point((x + z) / 2, w)} ${point(z, w)}`;
  const share = across / stacks.length;
  const made = stacks.map((stack, at) => stackOf(stack, at, { from: at * share, size: share - (at < stacks.length - 1 ? 10 : 0) }, { along, sizes, enlarged, isWide, turn, point, curve }));
  const last = made.at(-1);
  const bar = isWide ? Math.min(30, (across - 20) / Math.max(count, 1)) : 21;
  const names = made.flatMap(({ layers: of, at }) => of.map(({ layer }) => stacks[at].blocks[layer].name));
  const bars = Array.from({ length: count }, (_, index) => {
    const x = along - sizes.outputs + (isWide ? 0 : index * bar);
    const y = isWide ? last.middle - (count * bar) / 2 + index * bar : 0;
    const top = Math.max(18, Math.min(across - count * bar, last.middle - (count * bar) / 2));
    const place = isWide ? { x, y: top + index * bar, width: sizes.outputs, height: bar - 3 } : { x: 0, y: x, width: across, height: bar - 2 };
    const end = isWide ? top + (index + 0.5) * bar : y + 8;
    return { index, d: curve(last.end, last.middle, isWide ? x : along - sizes.outputs, isWide ? end : across / 2), ...place };
  });
  const crosses = ({ layer, head }) => stacks.length > 1 && stacks[last.at].blocks[layer]?.heads[head].layer.kind === "cross";
  const crossings = last.heads.filter(crosses).map(({ along: x, across: y }) => curve(made[0].end, made[0].middle, x, y)); // the encoder's output is read there
  if (isWide && count) last.labels.push({ text: "prediction", x: along - sizes.outputs + 6, y: bars[0].y - 17, width: 90, height: 14 });
  return { isWide, width: room.width, height, stacks: made, outputs: bars, crossings, names };
}

function stackOf({ name, isSource, isRecurrent, texts, maps, blocks }, at, { from, size }, { along, sizes, enlarged, isWide, turn, point, curve }) {
  const first = enlarged !== null && enlarged < blocks.length ? enlarged : 0;
  const shown = enlarged !== null && enlarged < blocks.length ? maps.slice(first, first + 2) : maps;
  const between = shown.length - 1;
  const [start, end] = [sizes.tokens + sizes.fan, along - sizes.outputs - sizes.fan];
  const node = between ? Math.max(6, Math.min(isWide ? 46 : 22, (end - start) / (between + 1) / 4)) : Math.min(200, end - start);
  const pitch = between ? (end - start - node) / between : 0;
  const hasParts = blocks.length > 0;
  const top = from + (hasParts ? 0.54 * size : 18);
  const bottom = from + (hasParts ? 0.76 * size : size - 4);
  const middle = (top + bottom) / 2;
  const stack = { at, middle, start, end: start + between * pitch + node, heads: [], networks: [], layers: [], labels: [], bands: [] };
  stack.bands.push(bandOf(start, end + sizes.fan / 3, middle, (bottom - top) * 0.3, point));
  stack.nodes = shown.map((_, i) => ({ node: first + i, ...turn(start + i * pitch, top, node, bottom - top) }));
  const label = (text, x, y, width) => stack.labels.push({ text, ...(isWide ? { x, y, width, height: 14 } : { x: y, y: x, width: 80, height: 14 }) });
  if (isWide) label(isRecurrent ? "states" : "embeddings", start, bottom + 2, 90);
  if (isWide && hasParts && pitch > 90) label("residual stream", start + node + 10, middle - 7, 120);
  if (name && isWide) label(name, 0, from, 90);
  stack.tokens = tokensOf(texts, { from: from + (name && isWide ? 16 : 0), size: size - (name && isWide ? 16 : 0), start, top, bottom, sizes, isWide, turn, curve });
  for (let i = 0; hasParts && i < between; i++) {
    const layer = first + i;
    const block = blocks[layer];
    const [x, room] = [start + i * pitch + node, pitch - node];
    const title = 18;
    stack.layers.push({ layer, ...(isWide ? { x: x + 3, y: from, width: room - 6, height: title - 2 } : { x: from, y: x + 2, width: 0.4 * size, height: 15 }) });
    const area = { x: x + (isWide ? 8 : title), y: from + (isWide ? title + 2 : 0), width: room - (isWide ? 16 : title + 4), height: 0.47 * size - (isWide ? title : 0) };
    placed(block.heads.length, area, (head, spot) => {
      const [hx, hy] = [spot.x + spot.size / 2, spot.y + spot.size];
      stack.heads.push({ layer, head, along: hx, across: spot.y, reads: curve(x, top + 4, hx, hy), writes: curve(hx, hy, x + room, top + 4), ...turn(spot.x, spot.y, spot.size, spot.size) });
    });
    const wide = Math.min(room - (isWide ? 16 : title), isWide ? 150 : 64);
    const long = Math.min(0.19 * size, isWide ? 110 : 90);
    const [nx, ny] = [x + (isWide ? (room - wide) / 2 : title), bottom + 0.04 * size];
    stack.networks.push({ layer, reads: curve(x, bottom - 4, nx + wide / 2, ny), writes: curve(nx + wide / 2, ny, x + room, bottom - 4), ...turn(nx, ny, wide, long) });
  }
  return stack;
}

/** A band that ends in the tip of an arrow. */
function bandOf(start, end, middle, thick, point) {
  const half = thick / 2;
  const tip = end - thick / 2;
  return `M${point(start, middle - half)}L${point(tip, middle - half)}L${point(tip, middle - thick * 0.8)}L${point(end, middle)}L${point(tip, middle + thick * 0.8)}L${point(tip, middle + half)}L${point(start, middle + half)}Z`;
}

/** Rows of tokens; of a long text each row holds several. A line leads from each to its part of the first map. */
function tokensOf(texts, { from, size, start, top, bottom, sizes, isWide, turn, curve }) {
  const each = Math.ceil(texts.length / Math.max(1, Math.floor(size / (isWide ? 15 : 26))));
  const rows = Math.ceil(texts.length / each);
  const step = Math.min(size / rows, isWide ? 26 : 60);
  const begin = isWide ? Math.max(from, Math.min(from + size - rows * step, (top + bottom) / 2 - (rows * step) / 2)) : from;
  return Array.from({ length: rows }, (_, i) => {
    const y = begin + i * step;
    const target = top + ((bottom - top) * (Math.min(texts.length, (i + 0.5) * each))) / texts.length;
    return { from: i * each, to: Math.min(texts.length, (i + 1) * each), d: curve(sizes.tokens, y + step / 2, start, target), ...turn(0, y, sizes.tokens, step - 1) };
  });
}

/** Place squares in an area, as large as they can be. */
function placed(count, { x, y, width, height }, put) {
  let best = { size: 0, columns: 1 };
  for (let columns = 1; columns <= count; columns++) {
    const size = Math.min(width / columns, height / Math.ceil(count / columns)) - GAP;
    if (size > best.size) best = { size, columns };
  }
  const { columns } = best;
  const size = Math.max(4, Math.min(150, best.size));
  const [left, top] = [x + (width - columns * (size + GAP) + GAP) / 2, y + height - Math.ceil(count / columns) * (size + GAP)];
  for (let i = 0; i < count; i++) put(i, { x: left + (i % columns) * (size + GAP), y: top + Math.floor(i / columns) * (size + GAP), size });
}

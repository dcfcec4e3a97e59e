/** A model's positions as maps. */

import { ask, latest } from "./api.js";
import { element, number } from "./text.js";
import { tiledMap } from "./tiledmap.js";

const [TALL, WIDE] = [64, 128]; // positions and dimensions of a question
const KINDS = {
  learned: "Learned positions: each position has a vector that is added to the token embedding.",
  sinusoidal: "Sinusoidal positions, which are added to the embeddings: sines in the even dimensions, cosines in the odd ones, ever slower to the right.",
  sinusoidal_halves: "Sinusoidal positions, which are added to the embeddings: sines in the left half, cosines in the right one, ever slower to the right.",
  rotary: "Rotary positions: each column is a pair of dimensions of a head's queries and keys, and each cell the cosine of the angle by which the pair is rotated.",
};

/**
 * Draw the tables of a model's positions.
 * @returns {() => void} what takes them away
 */
export function drawPositions(box, { model }) {
  const controller = new AbortController();
  const maps = [];
  const load = latest(async () => {
    const { tables } = await ask("position_tables", { model }, controller.signal);
    if (!tables.length) box.append(element("p", { class: "note" }, "A recurrent network has no positions: it knows the order of the tokens because it reads them one after the other."));
    for (const table of tables) maps.push(drawTable(box, model, table, tables.length > 1));
  }, (message) => {
    if (message) box.replaceChildren(element("p", { class: "trouble" }, message));
  });
  load();
  return () => {
    controller.abort();
    maps.forEach((map) => map.remove());
  };
}

function drawTable(box, model, table, named) {
  if (named) box.append(element("h3", {}, table.name));
  box.append(element("p", { class: "note" }, `Each row is a position: blue is above zero, red below. ${KINDS[table.kind]}`));
  const place = element("div");
  box.append(place);
  const what = table.kind === "rotary" ? "pair" : "dimension";
  return tiledMap(place, {
    label: `Positions, ${table.kind}${named ? `, ${table.name}` : ""}`,
    axes: { rows: "the position", columns: `the ${what}` },
    legend: [-1, 0, 1].map((share) => [share, number(share * table.largest)]),
    rows: Array.from({ length: table.rows }, (_, i) => `${i}`),
    columns: Array.from({ length: table.columns }, (_, i) => `${i}`),
    tall: TALL,
    wide: WIDE,
    cell: 8,
    scale: (value) => value / (table.largest || 1),
    tell: (row, column, value) => `position ${row}, ${what} ${column}: ${number(value)}`,
    load: async (signal, { row, rows, column, columns }) => {
      const asked = { model, table: table.name, first: row, count: rows, first_column: column, columns };
      return (await ask("positions", asked, signal)).values;
    },
  });
}

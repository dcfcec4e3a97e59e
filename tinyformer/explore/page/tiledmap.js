/** A map of numbers whose values come from the server when they are seen. */

import { HeatMap } from "./heatmap.js";
import { element, troubleLine } from "./text.js";
import { Tiles } from "./tiles.js";

/**
 * Draw such a map.
 * @param {HTMLElement} parent
 * @param {object} how that of HeatMap, without "value" and "onseen", and of Tiles: "tall", "wide" and "load". What "load" gives
 *   may be anything; "pick" makes a number of it.
 * @param {(found: any) => (number|null)} [how.pick]
 * @returns {{remove: () => void, map: HeatMap, tiles: Tiles}}
 */
export function tiledMap(parent, how) {
  const place = element("div", { class: "waiting" }); // its part is not shown before there are values
  const [trouble, refuse] = troubleLine();
  parent.append(place, trouble);
  const { pick = (found) => found } = how;
  let map = null;
  const tiles = new Tiles({
    rows: how.rows.length,
    columns: how.columns.length,
    tall: how.tall ?? how.rows.length,
    wide: how.wide,
    load: how.load,
    arrived: () => {
      place.classList.remove("waiting");
      map.draw();
      map.say();
    },
    refused: (message) => {
      refuse(message);
      if (message) place.classList.remove("waiting");
    },
  });
  const value = (row, column) => {
    const found = tiles.value(row, column);
    return found === null ? null : pick(found);
  };
  map = new HeatMap(place, {
    ...how,
    value,
    tell: (row, column, number) => how.tell(row, column, number, tiles.value(row, column)),
    write: how.write && ((row, column) => how.write(row, column, tiles.value(row, column))),
    paint: how.paint && ((pen, box, row, column) => how.paint(pen, box, row, column, tiles.value(row, column))),
    onseen: (range) => tiles.seen(range),
    complete: () => tiles.all(),
  });
  const remove = () => {
    tiles.remove();
    map.remove();
    place.remove();
    trouble.remove();
  };
  return { remove, map, tiles };
}

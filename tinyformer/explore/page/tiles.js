/** Numbers of a large table that are asked for in parts, and only those parts that are seen. */

import { latest } from "./api.js";

/** A table of which the parts that were seen are known. */
export class Tiles {
  /**
   * @param {object} how
   * @param {number} how.rows
   * @param {number} how.columns
   * @param {number} [how.tall] the rows of a part; without it a part has all rows
   * @param {number} how.wide the columns of a part
   * @param {(signal: AbortSignal, part: {row, rows, column, columns}) => Promise<Array<Array>>} how.load a part, by rows
   * @param {() => void} how.arrived is called when a part has come
   * @param {(message: string) => void} how.refused is told what the server refuses, "" when it is asked
   */
  constructor(how) {
    this.how = { tall: how.rows, ...how };
    this.parts = new Map();
    this.range = null;
    this.loading = false;
    this.running = null; // what is asked now
    this.removed = false;
    this.run = latest((signal) => this.fill(signal), how.refused);
  }

  /** A value, or null while it is not known. */
  value(row, column) {
    const { tall, wide } = this.how;
    const part = this.parts.get(`${Math.floor(row / tall)} ${Math.floor(column / wide)}`);
    return part ? part[row % tall][column % wide] : null;
  }

  /** Ask for what is not known of these rows and columns. */
  async seen(range) {
    this.range = range;
    if (this.loading || this.removed || !this.missing()) return;
    this.loading = true;
    try {
      await (this.running = this.run());
    } finally {
      this.loading = false;
    }
  }

  /** Ask for all that is not known yet, unless the server refuses. */
  async all() {
    const { rows, columns } = this.how;
    for (let before = -1; before < this.parts.size && !this.removed;) {
      before = this.parts.size;
      await this.running; // what is asked for already
      await this.seen({ row: 0, rows, column: 0, columns });
    }
  }

  /** Give up. */
  remove() {
    this.removed = true;
  }

  async fill(signal) {
    for (let next = this.missing(); next && !this.removed; next = this.missing()) {
      const { rows, columns, tall, wide } = this.how;
      const [row, column] = [next.down * tall, next.across * wide];
      const part = { row, rows: Math.min(tall, rows - row), column, columns: Math.min(wide, columns - column) };
      const found = await this.how.load(signal, part);
      if (this.removed) return;
      this.parts.set(`${next.down} ${next.across}`, found);
      this.how.arrived();
    }
  }

  /** A part that is seen and not known yet; null if there is none. */
  missing() {
    const { row, rows, column, columns } = this.range;
    const { tall, wide } = this.how;
    for (let down = Math.floor(row / tall); down * tall < row + rows; down++) {
      for (let across = Math.floor(column / wide); across * wide < column + columns; across++) {
        if (!this.parts.has(`${down} ${across}`)) return { down, across };
      }
    }
    return null;
  }
}

/** The parts of a model that can be switched off, and which of them are. */

/** A part is {kind, name, index}, as the question "ablated" takes it. Event "change": others are off, or in another way. */
export class Parts extends EventTarget {
  /** @param {object[]} blocks of the answer to the question "blocks" */
  constructor(blocks) {
    super();
    this.blocks = blocks;
    this.way = "zero"; // or "mean", or "choice": then heads look alike from each token, and all else gives its mean
    this.off = new Map(); // parts by their keys
    const stacks = {};
    this.labels = new Map(blocks.map(({ name, stack }) => {
      stacks[stack] = (stacks[stack] ?? 0) + 1;
      return [name, `${stack ? `${stack} ` : ""}block ${stacks[stack]}`];
    }));
    this.owners = new Map(blocks.flatMap(({ name, attention, network }) => [[name, name], [network.name, name], ...attention.map((layer) => [layer.name, name])]));
    this.cross = new Set(blocks.flatMap(({ attention }) => attention.filter(({ kind }) => kind === "cross").map(({ name }) => name)));
  }

  /** What a part is called: "block 2, head 3", "decoder block 1, head 1 to source", "block 1, MLP". Heads count from 1 on. */
  label({ kind, name, index }) {
    const block = this.labels.get(this.owners.get(name));
    if (kind === "block") return block;
    if (kind === "neuron") return `${block}, neuron ${index}`;
    return kind === "network" ? `${block}, MLP` : `${block}, head ${index + 1}${this.cross.has(name) ? " to source" : ""}`;
  }

  isOff(part) {
    return this.off.has(key(part));
  }

  /** Switch a part off, or on again. */
  toggle(part) {
    if (!this.off.delete(key(part))) this.off.set(key(part), part);
    this.dispatchEvent(new Event("change"));
  }

  clear() {
    this.off.clear();
    this.dispatchEvent(new Event("change"));
  }

  /** Choose what takes the place of what is off. */
  replace(way) {
    this.way = way;
    this.dispatchEvent(new Event("change"));
  }

  /** What is off, as questions take it. */
  asked() {
    const by = this.way === "zero" ? "zero" : "mean";
    return [...this.off.values()].map((part) => ({ ...part, kind: this.way === "choice" && part.kind === "head" ? "choice" : part.kind, by }));
  }
}

/** A text by which a part is found again. */
export function key({ kind, name, index }) {
  return `${kind} ${name} ${index}`;
}

/** The parts of a model that can be switched off, and which of them are. */

const WAYS = ["zero", "mean", "choice"]; // with "choice", heads look alike from each token, and all else gives its mean

/** A part is {kind, name, index}, as the question "ablated" takes it. Event "change": others are off, or in another way. */
export class Parts extends EventTarget {
  /** @param {object[]} blocks of the answer to the question "blocks" */
  constructor(blocks) {
    super();
    this.blocks = blocks;
    this.way = "zero";
    this.off = new Map(); // parts by their keys
    this.names = null; // the HeadNames, once they are known
    const stacks = {};
    this.labels = new Map(blocks.map(({ name, stack }) => {
      stacks[stack] = (stacks[stack] ?? 0) + 1;
      return [name, `${stack ? `${stack} ` : ""}layer ${stacks[stack]}`];
    }));
    this.owners = new Map(blocks.flatMap(({ name, attention, network }) => [[name, name], [network.name, name], ...attention.map((layer) => [layer.name, name])]));
    this.cross = new Set(blocks.flatMap(({ attention }) => attention.filter(({ kind }) => kind === "cross").map(({ name }) => name)));
    this.kinds = new Map(blocks.flatMap(({ name, attention, network }) => [
      [name, { whole: "block" }],
      [network.name, { whole: "network", one: "neuron", count: network.neurons }],
      ...attention.map((layer) => [layer.name, { one: "head", count: layer.heads }]),
    ]));
  }

  /** What a part is called: "layer 2, head 3", "decoder layer 1, head 1 to source", "layer 1, MLP". All count from 1 on. */
  label({ kind, name, index }) {
    const block = this.labels.get(this.owners.get(name));
    if (kind === "block") return block;
    if (kind === "neuron") return `${block}, neuron ${index + 1}`;
    return kind === "network" ? `${block}, MLP` : `${block}, head ${index + 1}${this.cross.has(name) ? " to source" : ""}`;
  }

  /** The same, of a head with what it does: "layer 2, head 3 · induction". */
  title(part) {
    return this.label(part) + (part.kind === "head" ? this.names?.ending(part.name, part.index) ?? "" : "");
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

  /** What is off and in which way, as an address says it: {by: "zero", off: "blocks.0.attention-2 blocks.1"}. */
  told() {
    const off = [...this.off.values()].map(({ name, index, kind }) => (this.kinds.get(name).one === kind ? `${name}-${index + 1}` : name));
    return { by: this.way, off: off.join(" ") || "none" };
  }

  /** Switch off what an address says, and nothing else. What this model does not have is left out. No event tells of it. */
  follow({ by, off = "" }) {
    this.way = WAYS.includes(by) ? by : "zero";
    this.off.clear();
    for (const said of off.split(" ")) {
      const [, name, number] = said.match(/^(.*?)(?:-(\d+))?$/s);
      const { whole, one, count } = this.kinds.get(name) ?? {};
      const part = number ? { kind: one, name, index: number - 1 } : { kind: whole, name, index: 0 };
      if (part.kind && (!number || (part.index >= 0 && part.index < count))) this.off.set(key(part), part);
    }
  }
}

/** A text by which a part is found again. */
export function key({ kind, name, index }) {
  return `${kind} ${name} ${index}`;
}

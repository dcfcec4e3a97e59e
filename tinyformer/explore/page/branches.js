/** The texts that were written from a prompt, as branches of a tree. Nothing here draws. */

const MOST_KEPT = 10_000; // tokens that are kept for the next time the page is opened
const MOST_TREES = 6;

/**
 * The branches of one prompt. Branch 0 is the prompt itself. Every other one leaves its parent before the token "at" of the
 * parent's text, and goes on with tokens of its own: {id, text, probability}.
 */
export class Tree {
  /** @param {object} prompt the passage of the prompt: {model, ids, texts, source, sourceTexts} */
  constructor(prompt) {
    this.prompt = prompt;
    this.root = { number: 0, parent: null, at: 0, tokens: prompt.ids.map((id, i) => ({ id, text: prompt.texts[i], probability: null })) };
    this.branches = [this.root];
    this.looked = this.root;
    this.next = 1; // the number of the next branch
  }

  /** All tokens of a branch, from the prompt's first on. */
  tokens(branch = this.looked) {
    return branch.parent ? [...this.tokens(branch.parent).slice(0, branch.at), ...branch.tokens] : branch.tokens;
  }

  length(branch = this.looked) {
    return branch.at + branch.tokens.length;
  }

  /** What the views look at: the passage of a branch. */
  passage(branch = this.looked) {
    if (branch === this.root) return this.prompt;
    const tokens = this.tokens(branch);
    return { ...this.prompt, ids: tokens.map(({ id }) => id), texts: tokens.map(({ text }) => text), given: this.prompt.ids.length };
  }

  /** A branch that goes on after the first "at" tokens of the text that is looked at. It is looked at from now on. */
  fork(at) {
    let parent = this.looked;
    if (parent !== this.root && at === this.length(parent)) return parent; // it has no next token yet
    while (parent !== this.root && at <= parent.at) parent = parent.parent;
    this.looked = { number: this.next++, parent, at, tokens: [] };
    this.branches.push(this.looked);
    return this.looked;
  }

  children(branch) {
    return this.branches.filter(({ parent }) => parent === branch);
  }

  /** Delete a branch and those that leave from it. If one of them was looked at, its parent is from now on. */
  remove(branch) {
    const gone = new Set([branch]);
    for (const one of this.branches) if (gone.has(one.parent)) gone.add(one); // parents stand before children
    this.branches = this.branches.filter((one) => !gone.has(one));
    if (gone.has(this.looked)) this.looked = branch.parent;
  }

  /** What is kept of it. */
  toJSON() {
    const { model, ids, source } = this.prompt;
    const index = (branch) => this.branches.indexOf(branch);
    const branches = this.branches.slice(1).map(({ number, parent, at, tokens }) => ({
      number,
      parent: index(parent),
      at,
      ids: tokens.map(({ id }) => id),
      texts: tokens.map(({ text }) => text),
      probabilities: tokens.map(({ probability }) => Number(probability.toPrecision(6))),
    }));
    return { model, ids, source, looked: index(this.looked), next: this.next, branches };
  }

  /** The tree that was kept, for the same prompt. */
  static from(kept, prompt) {
    const tree = new Tree(prompt);
    for (const { number, parent, at, ids, texts, probabilities } of kept.branches) {
      const tokens = ids.map((id, i) => ({ id, text: texts[i], probability: probabilities[i] }));
      tree.branches.push({ number, parent: tree.branches[parent], at, tokens });
    }
    tree.looked = tree.branches[kept.looked];
    tree.next = kept.next;
    return tree;
  }
}

/** The trees of the last prompts, as long as the tab is open. */
export class Trees {
  trees = []; // the newest first; after the page was opened again, as they were kept

  /** The tree of a prompt: the one that it had, or a new one. */
  of(prompt) {
    const found = this.trees.find((tree) => samePrompt(tree.prompt ?? tree, prompt));
    const tree = found instanceof Tree ? found : found ? Tree.from(found, prompt) : new Tree(prompt);
    this.trees = [tree, ...this.trees.filter((one) => one !== found && one.branches.length > (one instanceof Tree ? 1 : 0))].slice(0, MOST_TREES);
    return tree;
  }

  /** What is kept: the newest trees that fit. */
  toJSON() {
    let room = MOST_KEPT;
    const kept = [];
    for (const tree of this.trees.map((one) => (one instanceof Tree ? one.toJSON() : one))) {
      room -= tree.ids.length + tree.branches.reduce((sum, { ids }) => sum + ids.length, 0);
      if (room < 0) break;
      if (tree.branches.length) kept.push(tree);
    }
    return kept;
  }
}

function samePrompt(one, other) {
  const same = (a, b) => a.length === b.length && a.every((id, i) => id === b[i]);
  return one.model === other.model && same(one.ids, other.ids) && same(one.source, other.source);
}

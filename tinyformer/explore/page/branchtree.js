/** The branches, drawn as a small tree. */

import { counted, element, visible } from "./text.js";

const FIRST = 24; // characters that are shown of a branch

/**
 * Draw the branches of a tree. Up and Down move between them, Enter goes to one, Delete deletes it.
 * @param {HTMLElement} parent
 * @param {import("./branches.js").Tree} tree
 * @param {(branch: object) => void} onlook go to a branch
 * @param {(branch: object) => void} onremove delete it
 */
export function drawTree(parent, tree, onlook, onremove) {
  const held = document.activeElement?.closest?.(".tree") === parent.firstChild ? document.activeElement.dataset.branch : undefined;
  const list = element("ul", { class: "tree", "aria-label": "Branches. Up and Down move, Enter goes to one, Delete deletes it." });
  const draw = (branch, into) => {
    const item = element("li", {}, ...line(tree, branch, onlook, onremove));
    const children = tree.children(branch);
    if (children.length) {
      const inner = element("ul");
      children.forEach((child) => draw(child, inner));
      item.append(inner);
    }
    into.append(item);
  };
  draw(tree.root, list);
  list.addEventListener("keydown", (event) => move(event, list));
  parent.replaceChildren(list);
  if (held !== undefined) (list.querySelector(`.branch[data-branch="${held}"]`) ?? list.querySelector("[aria-current]"))?.focus();
}

function line(tree, branch, onlook, onremove) {
  const name = branch === tree.root ? "The text as it was given" : first(branch);
  const count = counted(branch.tokens.length, "token");
  const where = branch === tree.root ? count : `from place ${branch.at + 1}, ${count}`;
  const go = element("button", { type: "button", class: "branch" }, element("span", { class: "start" }, name), element("span", { class: "where" }, ` ${where}`));
  go.dataset.branch = branch.number;
  if (branch === tree.looked) go.setAttribute("aria-current", "true");
  go.addEventListener("click", () => onlook(branch));
  if (branch === tree.root) return [go];
  const away = element("button", { type: "button", class: "remove", title: `Delete branch ${branch.number} and those that leave from it`, "aria-label": `Delete branch ${branch.number} and those that leave from it` }, "×");
  away.dataset.branch = branch.number;
  away.addEventListener("click", () => onremove(branch));
  go.addEventListener("keydown", (event) => event.key === "Delete" && onremove(branch));
  return [go, away];
}

function first(branch) {
  const text = branch.tokens.slice(0, FIRST).map((token) => visible(token.text)).join("");
  const cut = [...text].slice(0, FIRST).join("");
  return cut.length < text.length || branch.tokens.length > FIRST ? `${cut}…` : cut || "…";
}

function move(event, list) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by) return;
  event.preventDefault();
  const all = [...list.querySelectorAll(".branch")];
  const own = all.indexOf(event.target.closest("li").querySelector(".branch"));
  all[own + by]?.focus();
}

// A button at each block of code that copies it: commands without what they printed, examples without their prompts.
"use strict";

const LABEL = "Copy this code";

function codeOf(block) {
  const copy = block.querySelector("pre").cloneNode(true);
  const isSession = copy.querySelector(".gp") !== null;
  if (isSession) {
    for (const part of copy.querySelectorAll(".gp, .go, .gt")) part.remove();
  }
  const lines = copy.textContent.split("\n").map((line) => line.trimEnd());
  return (isSession ? lines.filter((line) => line !== "") : lines).join("\n").replace(/^\n+|\n+$/g, "") + "\n";
}

async function write(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a server, some browsers let only what is selected be copied.
    const focused = document.activeElement;
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    focused?.focus();
    if (!isDone) throw new Error("this browser does not let a page copy");
  }
}

function addButton(block) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy-code";
  button.textContent = "Copy";
  button.setAttribute("aria-label", LABEL);
  button.addEventListener("click", async () => {
    let said = "Copied";
    try {
      await write(codeOf(block));
    } catch {
      said = "Select the text and press Ctrl+C";
    }
    button.textContent = said;
    button.setAttribute("aria-label", said);
    setTimeout(() => {
      button.textContent = "Copy";
      button.setAttribute("aria-label", LABEL);
    }, 2000);
  });
  button.setAttribute("aria-live", "polite");
  block.append(button);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("article div.highlight")) {
    const isSource = location.pathname.includes("/_modules/");
    if (!isSource && !block.closest(".cell_output, .highlight-text")) addButton(block);
  }
});

// The search shows a summary of each page that it found, and fetches the page for it. A browser fetches nothing from a disk.
// There the text of all pages comes in one script, and what asks for a page gets it from there.
"use strict";

if (location.protocol === "file:" && document.querySelector("#search-results") !== null) {
  const root = document.documentElement.dataset.content_root;
  const texts = new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = `${root}_static/texts.js`;
    script.onload = () => resolve(window.siteTexts);
    script.onerror = () => resolve({});
    document.head.append(script);
  });
  window.fetch = async (address) => {
    const page = String(address).slice(root.length).replace(/\.html$/, "");
    const shown = document.createElement("div");
    shown.setAttribute("role", "main");
    for (const [anchor, text] of Object.entries((await texts)[page] ?? {})) {
      const section = document.createElement("section");
      section.id = anchor;
      section.textContent = `${text} `;
      shown.append(section);
    }
    return new Response(shown.outerHTML);
  };
}

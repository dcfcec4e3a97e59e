/** The first of the page's modules. The others come after the first paint, which would otherwise wait behind them. */

const painted = new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
const late = new Promise((done) => setTimeout(done, 300)); // nothing is painted in a tab that nobody sees
await Promise.race([painted, late]);
document.head.append(document.getElementById("modules").content);
await import("./app.js");

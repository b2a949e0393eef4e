// Asks the search of a built documentation site: `node site_search.js SITE QUESTION…` prints a
// JSON list, for each question the places of its results, best first. It runs the site's own worker.
const fs = require("node:fs");
const path = require("node:path");
const vm = require("node:vm");

const [site, ...questions] = process.argv.slice(2);
const folder = path.join(site, "assets", "javascripts", "workers");
const worker = fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name));
const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"));

let listener;
let answer;
const global = vm.createContext({
  console,
  addEventListener: (_kind, heard) => { listener = heard; },
  postMessage: (message) => answer(message),
});
global.self = global;
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), global);

const ask = (message) => new Promise((resolve) => {
  answer = resolve;
  listener({ data: message });
});

(async () => {
  await ask({ type: 0, data: { ...index, options: { suggest: false } } });
  const found = [];
  for (const question of questions) {
    const { data } = await ask({ type: 2, data: question });
    found.push(data.items.map(([best]) => best.location));
  }
  console.log(JSON.stringify(found));
})();

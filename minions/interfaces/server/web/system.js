// How the server is, and what recipes it offers.

import { connection, connectionState, dropToken, enc, get, poll } from "./api.js";
import { LINE, empty, fill, h, plural, tag, time } from "./dom.js";
import { LiveList, cell, main, num, state } from "./list.js";
import { faultView } from "./run.js";

export async function showSystem({ root, signal }) {
	const facts = h("dl.facts"), faults = h("div.stack"), line = h("dd");
	const fact = (name, ...content) => h("div", h("dt", name), h("dd", content));
	const showLine = () => fill(line, tag(...LINE[connectionState()]));
	connection.addEventListener("change", showLine, { signal });
	const list = new LiveList({
		signal, every: 10_000, name: "recipes", heads: ["Recipe", "State", "About", "Steps"],
		load: async () => (await get("/recipes?limit=1000", { signal })).recipes,
		key: (each) => each.id,
		text: (each) => `${each.id} ${each.description}`,
		row: (each) => h("tr",
			main("Recipe", each.ok ? h("a.strong", { href: `#/new?recipe=${enc(each.id)}` }, each.id) : each.id),
			state("State", each.ok ? tag("good", each.is_agent ? "ready, chat" : "ready") : tag("bad", "cannot run")),
			cell("About", each.description || "–"), num("Steps", each.ok ? each.steps : "–")),
		none: empty("No recipes here", h("p", "The server offers what lies in its recipes folder: ", h("code", "minions serve --recipes DIR"), ".")),
		after: () => fill(faults, list.items.filter((each) => !each.ok).map((each) => h("section.panel",
			h("h3.row", each.id, tag("bad", plural(each.faults.length, "fault"))), h("div.stack", each.faults.map(faultView))))),
	});

	async function load() {
		const begun = performance.now();
		const ask = (path) => get(path, { signal }).catch(() => null);
		const [health, system] = await Promise.all([ask("/health"), ask("/system")]);
		fill(facts,
			fact("Health", tag(health?.status === "ok" ? "good" : "bad", health?.status ?? "no answer")),
			h("div", h("dt", "Connection"), line),
			fact("Answer took", `${Math.round(performance.now() - begun)} ms`),
			fact("Address", h("code", location.origin)),
			system && [
				fact("Version", h("code", system.version)), fact("Journal", h("code", system.journal)), fact("Started", time(system.started_at)),
				fact("Runs going on", `${system.active_runs} of at most ${system.max_runs}`), fact("Streams", system.followers),
			]);
	}

	const forget = () => (dropToken(), connection.dispatchEvent(new Event("refused")));
	fill(root, h("div.head", h("h1", "System"), h("button", { onclick: forget }, "Forget the token")),
		h("section.panel", h("h2", "Server"), facts),
		h("div.head", h("h2", "Recipes"), h("div.row.tools", list.filter)), faults, list.el);
	showLine();
	poll(5000, signal, load);
	await Promise.all([load(), list.begin()]);
}

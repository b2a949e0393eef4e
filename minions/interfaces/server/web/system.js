// How the server is, and what recipes it offers.

import { connection, connectionState, dropToken, enc, get, poll } from "./api.js";
import { LINE, Rows, callout, changed, empty, fill, h, loading, plural, tag, time } from "./dom.js";
import { cell, main, num, state } from "./list.js";

export async function showSystem({ root, signal }) {
	const facts = h("dl.facts"), line = h("dd");
	const fact = (name, ...content) => h("div", h("dt", name), h("dd", content));
	const showLine = () => fill(line, tag(...LINE[connectionState()]));
	connection.addEventListener("change", showLine, { signal });

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
				fact("Runs going on", `${system.active_runs} of at most ${system.max_runs}`), system.followers === null ? null : fact("Streams", system.followers),
				system.caller.expires ? fact("Your token expires", time(system.caller.expires)) : null,
			]);
	}

	const forget = () => (dropToken(), connection.dispatchEvent(new Event("refused")));
	fill(root, h("div.head", h("h1", "System"), h("button", { onclick: forget }, "Forget the token")),
		h("section.panel", h("h2", "Server"), facts));
	showLine();
	poll(5000, signal, load);
	await load();
}

/** All of them; an address of one shows that alone, or says that it is not there. */
export async function showRecipes({ root, path, signal }) {
	const faults = h("div.stack"), recipes = new RecipeList(faults, path[1]);
	fill(root, h("div.head", h("h1", "Recipes"), h("div.row.tools", recipes.words)), recipes.missing, faults, recipes.el);
	poll(10_000, signal, () => recipes.load(signal));
	await recipes.load(signal);
}

const HEADS = ["Recipe", "State", "About", "Steps"];

/** All recipes; the words are looked for here, as they are few. */
class RecipeList {
	constructor(faults, wanted = "") {
		this.faults = faults;
		this.wanted = wanted;
		this.missing = h("div");
		this.all = [];
		this.words = h("input", { type: "search", id: "filter", placeholder: "Filter recipes", "aria-label": "Filter recipes", "aria-keyshortcuts": "/", oninput: () => this.show() });
		this.body = h("tbody");
		this.rows = new Rows(this.body);
		this.table = h("table.list.cards.recipes", h("caption.away", "recipes"),
			h("thead", h("tr", HEADS.map((head) => h("th", { scope: "col", class: head === "Steps" ? "num" : null, text: head })))), this.body);
		this.el = h("div", loading("recipes"));
	}

	async load(signal) {
		const isFirst = !this.all.length;
		this.all = (await get("/recipes?limit=1000", { signal })).recipes;
		const isThere = this.all.some(({ id }) => id === this.wanted);
		if (isThere && isFirst) this.words.value = this.wanted;
		const isMissing = Boolean(this.wanted) && !isThere;
		if (changed(this, "isMissing", isMissing)) {
			fill(this.missing, isMissing && callout("bad", `There is no recipe '${this.wanted}'`, this.all.length ? "The server offers those below." : "The server offers none.", null, h("p", h("a", { href: "#/recipes" }, "All recipes"))));
		}
		this.show();
	}

	show() {
		const words = this.words.value.toLowerCase().split(/\s+/).filter(Boolean);
		const found = this.all.filter(({ id, name, description }) => words.every((word) => `${id} ${name} ${description}`.toLowerCase().includes(word)));
		if (!this.all.length) fill(this.el, empty("No recipes here", h("p", "The server offers what lies in its recipes folder: ", h("code", "minions serve --recipes DIR"), ".")));
		else if (!found.length) fill(this.el, empty("No recipes with these words"));
		else if (this.table.parentNode !== this.el) fill(this.el, this.table);
		this.rows.show(found, (each) => each.id, JSON.stringify, (each) => this.row(each));
		const bad = this.all.filter((each) => !each.ok);
		if (!changed(this, "faults", bad)) return;
		fill(this.faults, bad.map((each) => h("section.panel", h("h2.row", each.id, tag("bad", plural(each.fault_count, "fault"))), h("p.muted", "The server's log says which, and so does ", h("code", "minions validate"), " where the file is."))));
	}

	row(each) {
		return h("tr",
			main("Recipe", each.ok ? h("a.strong", { href: `#/new?recipe=${enc(each.id)}` }, each.id) : each.id),
			state("State", !each.ok ? tag("bad", "cannot run") : each.watch?.scorers.some((one) => one.alarm_since) ? tag("bad", "runs got worse") : tag("good", each.is_agent ? "ready, chat" : "ready")),
			cell("About", each.description || "–"), num("Steps", each.ok ? each.steps : "–"));
	}
}

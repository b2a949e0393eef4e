// Search within a run: where a text occurs, with a link to each place.

import { enc, get } from "./api.js";
import { fill, h, plural, problem } from "./dom.js";

const TYPING_MS = 250;
const PARTS = { prompt: "prompt", response: "response", tools: "tool calls", output: "output", attempts: "error", run: "the run" };

/** `path`: of the run in the API; `href(address)`: of a step in the page. */
export class RunSearch {
	constructor(path, href, signal) {
		Object.assign(this, { path, href, signal, asked: 0 });
		this.input = h("input", { type: "search", id: "filter", placeholder: "Search in this run", "aria-label": "Search in this run", "aria-keyshortcuts": "/", oninput: () => this.type() });
		this.el = h("section.panel", { hidden: true, "aria-label": "Search results" });
	}

	type() {
		clearTimeout(this.timer);
		this.timer = setTimeout(() => this.search(), TYPING_MS);
	}

	async search() {
		const text = this.input.value.trim(), asked = ++this.asked;
		this.el.hidden = !text;
		if (!text) return;
		try {
			const found = await get(`${this.path}/search?limit=50&text=${enc(text.slice(0, 200))}`, { signal: this.signal });
			if (asked === this.asked) this.show(text, found);
		} catch (error) {
			if (error.name !== "AbortError" && asked === this.asked) fill(this.el, problem(error));
		}
	}

	show(text, { hits, has_more: hasMore }) {
		const words = hits.length ? `${hasMore ? "The first " : ""}${plural(hits.length, "place")} with “${text}”` : `“${text}” does not occur in this run.`;
		fill(this.el, h("p.strong", { role: "status" }, words), h("ul.plain.lines.hits", hits.map((hit) => h("li", this.place(hit), h("div", hit.before, h("mark", hit.match), hit.after)))));
	}

	place({ address, part }) {
		if (address === null) return h("span.muted", "inputs, output or error of the run");
		return h("a", { href: `${this.href(address)}&tab=${part}` }, h("code", address), ` · ${PARTS[part] ?? part}`);
	}
}

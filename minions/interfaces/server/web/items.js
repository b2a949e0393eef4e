// The items of a loop as rows: their states come by the events of the run, their words from the server.

import { enc, get } from "./api.js";
import { Rows, chip, cost, count, duration, h, plural, statusOf } from "./dom.js";

const PAGE = 100, WORDS = 1000;
const AGAIN_MS = 2000; // until words that were not there are asked for once more

/** `57/200, 2 failed, 1,140 tokens, $0.02`. */
export function totalsText({ total, ended, failed, usage }) {
	return [
		total === null ? `${count(ended)} done` : `${count(ended)}/${count(total)}`,
		failed ? `${count(failed)} failed` : "",
		usage.total_tokens ? `${count(usage.total_tokens)} tokens` : "",
		usage.total_tokens ? cost(usage).replace("unknown", "cost unknown") : "",
	].filter(Boolean).join(", ");
}

/** One loop's table. `open(address)` shows an item. */
export class ItemTable {
	constructor(path, step, signal, open) {
		Object.assign(this, { path, step, signal, open, page: 0, words: new Map(), askedAt: new Map(), items: new Map() });
		this.body = h("tbody");
		this.rows = new Rows(this.body);
		this.summary = h("strong.tabular", { role: "status" });
		this.filter = h("select", { "aria-label": "Which items", onchange: () => this.turn(0) },
			[["", "All items"], ["failed", "Failed"], ["running", "Running"], ["completed", "Completed"]].map(([value, word]) => h("option", { value }, word)));
		this.part = h("span.muted");
		this.before = h("button", { onclick: () => this.turn(this.page - 1) }, "Before");
		this.next = h("button", { onclick: () => this.turn(this.page + 1) }, "Next");
		this.foot = h("div.row", this.before, this.next, this.part);
		this.el = h("div.stack.items", h("div.row.between", this.summary, this.filter),
			h("table.list.small.items-table", h("caption.away", `Items of ${step}`),
				h("thead", h("tr", ["Item", "Status", "About", "Tokens", "Cost", "Time"].map((text) => h("th", { scope: "col", class: /Tokens|Cost|Time/.test(text) ? "num" : null, text })))),
				this.body),
			this.foot);
	}

	turn(page) {
		this.page = Math.max(0, page);
		this.show(this.items, this.totals);
	}

	show(items, totals) {
		[this.items, this.totals] = [items, totals];
		this.summary.textContent = totalsText(totals);
		const wanted = this.filter.value;
		const isFailed = (index) => items.get(index).status === "failed"; // they are looked for: first
		const all = [...items.keys()].filter((index) => !wanted || items.get(index).status === wanted).sort((a, b) => isFailed(b) - isFailed(a) || a - b);
		const last = Math.max(0, Math.ceil(all.length / PAGE) - 1);
		const page = Math.min(this.page, last); // the reader's own stays: while a run is read again there are fewer items for a moment
		const shown = all.slice(page * PAGE, (page + 1) * PAGE);
		this.rows.show(shown, (index) => index, (index) => JSON.stringify([items.get(index), this.words.get(index)]), (index) => this.row(index, items.get(index)));
		const first = page * PAGE + 1;
		this.part.textContent = all.length > PAGE ? `${count(first)}–${count(first + shown.length - 1)} of ${plural(all.length, "item")}` : all.length ? "" : "No such items.";
		this.foot.hidden = all.length > 0 && all.length <= PAGE;
		this.before.hidden = this.next.hidden = all.length <= PAGE;
		this.before.disabled = page === 0;
		this.next.disabled = page === last;
		const missing = shown.find((index) => !this.words.has(index));
		if (missing !== undefined) this.ask(Math.floor(missing / WORDS));
	}

	row(index, item) {
		const address = `${this.step}[${index}]`, { word } = statusOf(item.status);
		const about = item.error ? h("span.bad.bad-text", item.error.message) : this.words.get(index) ?? "";
		return h("tr",
			h("td", h("a", { href: this.open(address), "aria-label": `Item ${index}: ${word}` }, String(index))),
			h("td", chip(item.status)),
			h("td.about", { title: this.words.get(index) }, about),
			h("td.num", item.usage?.total_tokens ? count(item.usage.total_tokens) : "–"), h("td.num", cost(item.usage)), h("td.num", duration(item.duration)));
	}

	/** The words of a thousand items; of those that have none yet again after a while. */
	async ask(part) {
		const now = performance.now();
		if (now - (this.askedAt.get(part) ?? -AGAIN_MS) < AGAIN_MS) return;
		this.askedAt.set(part, now);
		try {
			const { items } = await get(`${this.path}/items?step=${enc(this.step)}&limit=${WORDS}&offset=${part * WORDS}`, { signal: this.signal });
			for (const { index, status, words } of items) if (words || status !== "running") this.words.set(index, words);
			this.show(this.items, this.totals);
		} catch {
			// the rows stay without words
		}
	}
}

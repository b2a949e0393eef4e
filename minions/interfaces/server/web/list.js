// A list that stays up to date: filter, rows by key, states without rows.

import { poll } from "./api.js";
import { Rows, fill, h, loading } from "./dom.js";

/**
 * `load()` gives the items; `filters(item)` says which are shown beside the words of the filter, which
 * are looked for in `text(item)`; `key`, `row` make rows; `none` is shown when there are no items.
 */
export class LiveList {
	constructor({ signal, every, name, heads, load, key, row, text, filters = () => true, none, after }) {
		Object.assign(this, { signal, every, load, key, row, text, filters, none, after, items: null });
		this.filter = h("input", { type: "search", id: "filter", placeholder: `Filter ${name}`, "aria-label": `Filter ${name}`, "aria-keyshortcuts": "/", oninput: () => this.show() });
		this.body = h("tbody");
		this.rows = new Rows(this.body);
		this.table = h(`table.list.cards.${name}`,
			h("caption.away", name),
			h("thead", h("tr", heads.map((head) => h("th", { scope: "col", class: /Duration|Tokens|Cost|Steps/.test(head) ? "num" : "" }, head || h("span.away", "Pick"))))),
			this.body);
		this.el = h("div", loading(name));
	}

	async begin() {
		await this.refresh();
		poll(this.every, this.signal, () => this.refresh());
	}

	async refresh() {
		this.items = await this.load();
		this.show();
	}

	show() {
		if (!this.items) return;
		const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
		const shown = this.items.filter((item) => this.filters(item) && words.every((word) => this.text(item).toLowerCase().includes(word)));
		if (!this.items.length) fill(this.el, this.none);
		else if (!shown.length) fill(this.el, h("div.empty", h("h2", "Nothing fits the filter")));
		else if (this.table.parentNode !== this.el) fill(this.el, this.table);
		this.rows.show(shown, this.key, JSON.stringify, this.row);
		this.after?.(shown.length);
	}
}

const td = (look) => (label, ...content) => h(look, { data: { label } }, content);
export const [cell, num, state, main] = ["td", "td.num", "td.state", "td.main-cell"].map(td);

// A list that stays up to date: its filters and its page stand in the address, and the server applies them.

import { enc, get, onChange } from "./api.js";
import { Rows, count, empty, fill, h, loading, plural, problem } from "./dom.js";
import { go } from "./address.js";

const PAGE = 100;
const MOST_OF_ALL = 1_000; // rows of a list of all projects that pages reach
const TYPING_MS = 250; // after the last key the server is asked

/**
 * `name` is the last word of the page's path and of the API's; `key`, `row` make rows; `none` is shown when
 * there are no items at all. It is loaded again when runs change. `filters`: [{name, label, control?, word?}], beside the words to look for; one
 * without a control comes by an address only. `word(value)` is what people read for a value. `search`: the words are a search,
 * which the server reads; `search.isWhole(text)` says whether a text is one already, `search.offer(text)` gets each as it is typed.
 */
export class LiveList {
	constructor({ signal, name, heads, key, row, filters = [], search = null, none, after }) {
		Object.assign(this, { signal, name, key, row, none, after, search, items: null, total: 0, isMinimum: false, values: {}, page: 1, asked: 0 });
		this.words = h("input", { type: "search", id: "filter", placeholder: `Filter ${name}`, "aria-label": `Filter ${name}`, "aria-keyshortcuts": "/", oninput: () => this.type() });
		this.typed = search ? "q" : "text";
		this.filters = [{ name: this.typed, label: search ? "search" : "words", control: this.words }, ...filters];
		for (const { name: which, control } of filters) control?.addEventListener("change", () => this.set(which, control.value));
		this.others = h("span.row");
		this.tools = [this.words, filters.map(({ control }) => control), this.others];
		this.body = h("tbody");
		this.rows = new Rows(this.body);
		this.table = h(`table.list.cards.${name}`,
			h("caption.away", name),
			h("thead", h("tr", heads.map((head) => h("th", { scope: "col", class: /Duration|Tokens|Cost|Steps/.test(head) ? "num" : "" }, head || h("span.away", "Pick"))))),
			this.body);
		this.el = h("div", loading(name));
		this.summary = h("p.muted", { role: "status" });
		this.newer = h("button", { hidden: true, onclick: () => this.turn(this.page - 1) }, "Newer");
		this.older = h("button", { hidden: true, onclick: () => this.turn(this.page + 1) }, "Older");
		this.clearing = this.clear();
		this.foot = h("div.row", this.summary, this.clearing, this.newer, this.older);
	}

	async begin(query) {
		this.read(query);
		try {
			await this.refresh();
		} catch (error) {
			if (!error.status) throw error; // no answer: the page waits for the connection
			this.refuse(error);
		}
		onChange("runs", this.signal, () => this.refresh());
	}

	// --- the address

	/** The address changed while the list is shown. */
	async take(query) {
		this.read(query);
		try {
			await this.refresh();
		} catch (error) {
			if (error.name !== "AbortError") this.refuse(error);
		}
	}

	read(query) {
		this.values = Object.fromEntries(this.filters.map(({ name }) => [name, query.get(name)]).filter(([, value]) => value));
		this.page = Math.max(1, Number.parseInt(query.get("page"), 10) || 1);
		for (const { name, control } of this.filters) {
			const isTyped = control === this.words && this.timer;
			if (control && !isTyped) write(control, this.values[name] ?? "");
		}
		const others = this.filters.filter(({ name, control }) => !control && this.values[name]);
		fill(this.others, others.map((each) => h("button", { "aria-label": `Remove the filter ${this.told(each)}`, onclick: () => this.set(each.name, "") }, this.told(each), h("span", { "aria-hidden": "true" }, "×"))));
	}

	address(values, page = 1) {
		const query = new URLSearchParams(values);
		if (page > 1) query.set("page", page);
		return `/${this.name}${query.size ? `?${query}` : ""}`;
	}

	/** One filter anew, on the first page. */
	set(name, value, options) {
		const { [name]: _, ...rest } = this.values;
		go(this.address(value ? { ...rest, [name]: value } : rest), options);
	}

	type() {
		clearTimeout(this.timer);
		this.search?.offer(this.words.value);
		if (this.search && !this.search.isWhole(this.words.value)) {
			this.timer = null;
			return;
		}
		this.timer = setTimeout(() => {
			this.timer = null;
			if (!this.signal.aborted) this.set(this.typed, this.words.value.trim(), { replace: true });
		}, TYPING_MS);
	}

	turn(page) {
		go(this.address(this.values, page));
		window.scrollTo(0, 0);
	}

	// --- what the server gives

	async refresh() {
		const asked = ++this.asked;
		const query = new URLSearchParams({ ...this.values, limit: PAGE, offset: (this.page - 1) * PAGE });
		const reply = await get(`/${this.name}?${query}`, { signal: this.signal });
		if (asked !== this.asked) return; // another address was asked for meanwhile
		[this.items, this.total, this.isMinimum] = [reply[this.name], reply.total, reply.total_is_minimum];
		const last = Math.max(1, Math.ceil(this.total / PAGE));
		if (this.page > last) go(this.address(this.values, last), { replace: true });
		else this.show();
	}

	show() {
		if (!this.total) fill(this.el, this.isFiltered ? this.nothing() : this.none);
		else if (this.table.parentNode !== this.el) fill(this.el, this.table);
		this.rows.show(this.items, this.key, JSON.stringify, this.row);
		const first = (this.page - 1) * PAGE + 1;
		const part = this.total > PAGE ? `${count(first)}–${count(first + this.items.length - 1)} of ` : "";
		this.summary.textContent = this.total ? `${part}${this.isMinimum ? "at least " : ""}${plural(this.total, this.name.slice(0, -1))}${this.isFiltered ? " with these filters" : ""}` : "";
		this.clearing.hidden = !this.total || !this.isFiltered;
		this.newer.hidden = this.page === 1;
		this.older.hidden = this.page * PAGE >= this.total;
		this.after?.();
	}

	get isFiltered() {
		return Object.keys(this.values).length > 0;
	}

	told({ name, label, word = (value) => `“${value}”` }) {
		return `${label}: ${word(this.values[name])}`;
	}

	nothing() {
		const set = this.filters.filter(({ name }) => this.values[name]).map((each) => h("li", this.told(each)));
		return empty(`No ${this.name} with these filters`, h("ul.plain", set), this.clear());
	}

	clear() {
		return h("button", { onclick: () => go(`/${this.name}`) }, "Clear the filters");
	}

	refuse(error) {
		fill(this.el, problem(error), h("p", this.clear()));
		this.summary.textContent = "";
		this.clearing.hidden = this.newer.hidden = this.older.hidden = true;
	}
}

/**
 * A table of what the server gives under `path`, in pages: `name` is the member of its answer, `heads` are
 * [[word, look?]], `row(item)` makes a row, `none` is shown where there is nothing. `onReply` gets each answer.
 */
export class Part {
	/** `size` 0: the server gives all at once; `turns` false: only the first ones. */
	constructor({ title, path, name, heads, key, row, none, size = 50, turns = true, look = name, onReply = () => {} }) {
		Object.assign(this, { path, name, key, row, none, size, turns, onReply, page: 0 });
		this.body = h("tbody");
		this.rows = new Rows(this.body);
		this.table = h(`table.list.cards.${look}`, h("caption.away", title), h("thead", h("tr", heads.map(([word, side]) => h("th", { scope: "col", class: side ?? null, text: word })))), this.body);
		this.place = h("div", loading(title.toLowerCase()));
		this.words = h("span.muted", { role: "status" });
		this.previous = h("button", { hidden: true, onclick: () => this.turn(-1) }, "Previous");
		this.next = h("button", { hidden: true, onclick: () => this.turn(1) }, "Next");
		this.el = h("section.stack", { "aria-label": title }, h("h2", title), this.place, h("div.row", this.previous, this.next, this.words));
	}

	async turn(by) {
		this.page += by;
		await this.load(this.signal);
		this.el.querySelector("a, button:not([hidden])")?.focus();
	}

	async load(signal) {
		this.signal = signal;
		const mark = this.path.includes("?") ? "&" : "?", before = this.page * this.size;
		const part = this.size ? `${mark}limit=${this.size}${this.turns ? `&offset=${before}` : ""}` : "";
		const reply = await get(`${this.path}${part}`, { signal });
		const { [this.name]: items, has_more: hasMore, total = before + items.length + (hasMore ? 1 : 0) } = reply;
		this.onReply(reply);
		if (!items.length && this.page > 0) {
			this.page = Math.max(0, Math.ceil(total / this.size) - 1);
			await this.load(signal);
			return;
		}
		if (!total) fill(this.place, this.none);
		else if (this.table.parentNode !== this.place) fill(this.place, this.table);
		this.rows.show(items, this.key, JSON.stringify, this.row);
		this.previous.hidden = this.page === 0;
		const isLast = before + this.size >= total || (hasMore && before + 2 * this.size > MOST_OF_ALL);
		this.next.hidden = !this.size || !this.turns || isLast;
		this.words.textContent = this.size && total > this.size ? `${count(before + 1)}–${count(before + items.length)}${hasMore ? "" : ` of ${count(total)}`}` : "";
	}
}

/** Also a value that the control did not offer. */
function write(control, value) {
	if (control.options) offer(control, [[value, value]]);
	if (control.value.trim() !== value) control.value = value;
}

/** A control for one of these `[value, word]`, or any. */
export const choice = (label, any, options = []) => offer(h("select", { "aria-label": label }, h("option", { value: "" }, any)), options);

/** Further ones, where they are not there yet. */
export function offer(control, options) {
	const known = new Set([...control.options].map(({ value }) => value));
	control.append(...options.filter(([value]) => !known.has(value)).map(([value, word]) => h("option", { value }, word)));
	return control;
}

/** The last folder of a project's path. */
export const folderOf = (project) => project.split(/[\\/]/).filter(Boolean).at(-1) ?? project;

/** A filter by project: the server's own, and those of the rows that were seen; hidden where there is but one. */
export class ProjectFilter {
	constructor(signal) {
		this.control = choice("Project", "Any project");
		this.control.hidden = true;
		this.own = null;
		this.filter = { name: "project", label: "project", control: this.control, word: folderOf };
		get("/system", { signal }).then(({ project }) => this.take([{ project }], project), () => {}); // only offered
	}

	take(rows, own = this.own) {
		this.own = own;
		offer(this.control, [...new Set(rows.map(({ project }) => project).filter(Boolean))].map((each) => [each, each === this.own ? `${folderOf(each)} (here)` : folderOf(each)]));
		this.control.hidden = this.control.options.length < 3 && !this.control.value;
		document.body.classList.toggle("many-projects", !this.control.hidden);
	}
}

/** Under what a row is about: of which project it is. */
export const projectHint = ({ project }) => (project ? h("div.hint.clip.project-hint", { title: project }, folderOf(project)) : null);

/** The address of the runs of a session. */
export const runsOf = (session) => `#/runs?session=${enc(session)}`;

const td = (look) => (label, ...content) => h(look, { data: { label } }, content);
export const [cell, num, state, main] = ["td", "td.num", "td.state", "td.main-cell"].map(td);

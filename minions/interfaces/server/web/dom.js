// Elements, icons and how values read. Data becomes text nodes only, never markup.

import { now } from "./api.js";

const SVG = "http://www.w3.org/2000/svg";

// Characters that are not seen or turn the direction, as contracts/hidden_characters.py has them; and control characters.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e007f}]|(?<![\u0300-\u{10ffff}])[\u200c\u200d]|[\u200c\u200d](?![\u0300-\u{10ffff}])/gu;

/** The text with hidden characters as escapes: what a person approves is what they see. */
export function plain(text) {
	return text.replace(HIDDEN, (found) => {
		const code = found.codePointAt(0);
		return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
	});
}

/** An element: `h("p.muted", {id: "x"}, …children)`. Props are listeners `on*`, `data`, properties or attributes. */
export function h(name, ...children) {
	const [tag, ...classes] = name.split("."), el = document.createElement(tag);
	if (classes.length) el.className = classes.join(" ");
	if (tag === "button") el.type = "button";
	const props = Object.getPrototypeOf(children[0] ?? 0) === Object.prototype ? children.shift() : {};
	for (const [key, value] of Object.entries(props)) {
		if (isNothing(value)) continue;
		if (key === "class") el.className = value;
		else if (key === "text") el.textContent = plain(String(value));
		else if (key === "data") Object.assign(el.dataset, value);
		else if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
		else if (key in el && typeof value !== "string") el[key] = value;
		else el.setAttribute(key, value === true ? "" : key === "title" || key === "aria-label" ? plain(String(value)) : value);
	}
	add(el, children);
	return el;
}

const isNothing = (value) => value === null || value === undefined || value === false;

function add(el, children) {
	for (const child of children.flat(3)) {
		if (isNothing(child)) continue;
		el.append(child instanceof Node ? child : plain(String(child)));
	}
}

/** Put these in place of all that is there. */
export function fill(el, ...children) {
	el.replaceChildren();
	add(el, children);
	return el;
}

export function s(tag, attributes, ...children) {
	const el = document.createElementNS(SVG, tag);
	for (const [name, value] of Object.entries(attributes ?? {})) el.setAttribute(name, value);
	el.append(...children);
	return el;
}

// --- status: a shape, a word, a colour

const SHAPES = {
	good: "M2.5 6.5 5 9l4.5-6",
	bad: "M3 3l6 6M9 3l-6 6",
	part: "M6 2.5V7M6 9.2v.3",
	wait: "M4 2.5v7M8 2.5v7",
	run: "M6 1.5a4.5 4.5 0 1 0 4.5 4.5",
	open: "M6 2a4 4 0 1 0 0 8 4 4 0 1 0 0-8",
	gone: "M2.5 6h7",
	plus: "M6 2.5v7M2.5 6h7",
	tilde: "M2.2 7c1.3-2.6 2.5-2.2 3.8-1s2.5 1.6 3.8-1",
	stop: "M3.2 3.2h5.6v5.6H3.2Z",
};
const STATUSES = {
	queued: ["open", "queued"],
	running: ["run", "running"],
	interrupted: ["gone", "interrupted"],
	completed: ["good", "completed"],
	partial: ["part", "partial"],
	failed: ["bad", "failed"],
	rejected: ["bad", "rejected"],
	unreadable: ["bad", "unreadable"],
	limit_reached: ["stop", "limit reached"],
	needs_decision: ["wait", "needs a decision"],
	waiting: ["wait", "waits"],
	cancelled: ["stop", "cancelled"],
	cancelling: ["stop", "stopping"],
	pending: ["open", "not begun"],
	skipped: ["gone", "skipped"],
};

/** The shape and the word of a status. */
export function statusOf(status) {
	const [kind, word] = STATUSES[status] ?? ["open", String(status ?? "none").replaceAll("_", " ")];
	return { kind, word };
}

export function shape(kind) {
	return s("svg", { viewBox: "0 0 12 12", class: `shape ${kind}`, "aria-hidden": "true" }, s("path", { d: SHAPES[kind] }));
}

/** A shape and a word. */
export const tag = (kind, word, look = kind, title = null) => h("span", { class: `chip ${look}`, title }, shape(kind), h("span", word));

export function chip(status, title) {
	const { kind, word } = statusOf(status);
	return tag(kind, word, kind, title);
}

// --- how values read

const format = (options) => new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", ...options });
const TODAY = format({ second: "2-digit" }), EARLIER = format({ year: "numeric", month: "short", day: "numeric" });
const WHOLE = new Intl.NumberFormat("en-US");

/** Local date and time as words. A formatter of its own for each time, as `toLocaleString` makes, would take a hundred times as long. */
export const dateWords = (iso) => EARLIER.format(new Date(iso));

/** The same, of today without the date. */
export const timeWords = (iso) => (new Date(iso).toDateString() === new Date(now()).toDateString() ? TODAY.format(new Date(iso)) : dateWords(iso));

/** Local time; the full ISO form on hover. */
export const time = (iso) => h("time", { datetime: iso, title: new Date(iso).toISOString() }, timeWords(iso));

export function duration(ms) {
	if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
	if (ms < 1) return "<1 ms";
	if (ms < 1000) return `${Math.round(ms)} ms`;
	if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
	const seconds = Math.round(ms / 1000), minutes = Math.floor(seconds / 60), two = (n) => String(n % 60).padStart(2, "0");
	return minutes < 60 ? `${minutes} min ${two(seconds)} s` : `${Math.floor(minutes / 60)} h ${two(minutes)} min`;
}

export const between = (start, end) => (end ? Date.parse(end) : now()) - Date.parse(start);

export const count = (n) => (n === null || n === undefined ? "–" : WHOLE.format(n));

/** A number in little room: `999`, `1.1k`, `2M`. */
export function short(n) {
	const [limit, sign] = n >= 1e6 ? [1e6, "M"] : [1e3, "k"];
	return n < 1000 ? String(n) : `${(n / limit).toFixed(1).replace(/\.0$/, "")}${sign}`;
}

/** Unknown is a word and never nothing; a dash where no model was asked. */
export function cost(usage) {
	if (!usage?.total_tokens) return "–";
	const amount = usage.cost_usd;
	if (amount === null || amount === undefined) return "unknown";
	if (amount <= 0) return "$0";
	if (amount >= 1) return `$${amount.toFixed(2)}`;
	return `$${amount.toFixed(Math.max(2, 1 - Math.floor(Math.log10(amount))))}`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** Short enough for a table; the whole id is on hover and in the link. Ids of one batch begin alike: the end tells them apart. */
export const shortId = (id) => (id.length > 14 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);

/** JSON for people; text stays as it is. JSON in a text is laid out, too. */
export function pretty(value) {
	if (typeof value === "string") {
		const text = value.trim();
		if (!/^[[{]/.test(text)) return value;
		try {
			return JSON.stringify(JSON.parse(text), null, 2);
		} catch {
			return value;
		}
	}
	return value === undefined ? "" : JSON.stringify(value, null, 2);
}

// --- parts

/** `text`: the text, or a function that gives it. */
export function copyButton(text, label) {
	const button = h("button.copy.quiet", { "aria-label": `Copy ${label ?? "text"}`, text: "Copy" });
	button.addEventListener("click", async () => {
		let word = "Copied";
		try {
			await navigator.clipboard.writeText(typeof text === "function" ? await text() : text);
		} catch {
			word = "Not allowed";
		}
		button.textContent = word;
		setTimeout(() => (button.textContent = "Copy"), 1500);
	});
	return button;
}

export function empty(title, ...more) {
	return h("div.empty", h("h2", title), more);
}

export function loading(what) {
	return h("p.loading", { role: "status" }, shape("run"), `Loading ${what}…`);
}

const beginning = (text) => (typeof text === "string" && text.length > 4000 ? `${text.slice(0, 4000)}…` : text);

/** Something that has to be seen: what, why, and the code to look for. */
export function callout(kind, title, text, code, ...more) {
	return h("div", { class: `callout ${kind}`, role: "alert" }, shape(kind),
		h("div", title && h("strong", title), h("p", beginning(text)), more, code && h("code.muted", code)));
}

export function problem(error) {
	return callout("bad", error.title ?? "Something went wrong", error.message, error.code, error.suggestions?.length > 0 && h("p.muted", `Try: ${error.suggestions.join(", ")}`));
}

let noteTimer = 0;
/** A short word at the edge of the page; also for those who cannot see it. */
export function note(text, kind = "") {
	const box = document.getElementById("notes");
	fill(box, h("div", { class: `note ${kind}` }, kind ? shape(kind) : null, h("span", { text })));
	clearTimeout(noteTimer);
	noteTimer = setTimeout(() => box.replaceChildren(), kind === "bad" ? 9000 : 4000);
}

/** Shape and word of each state of the connection. */
export const LINE = { live: ["good", "live"], reconnecting: ["run", "reconnecting…"], gone: ["bad", "server gone"], "logged-out": ["bad", "login ended"] };

// --- what the token lets one do

let caller = null;

/** Who it is, by a token or a proxy, and what they may do, as `GET /system` says it; null: everything. */
export const setCaller = (known) => (caller = known);

/** Why that scope's controls do not work; null: they do. */
export function lacks(scope) {
	if (!scope || !caller || caller.scopes.includes(scope)) return null;
	if (caller.role) return `Your role, ${caller.role}, lacks the scope "${scope}"; ${scope === "decide" ? "an approver" : "an operator"} has it.`;
	return `Your ${caller.is_user ? "account" : "token"} lacks the scope "${scope}".`;
}

/** Whether a proxy says who it is, and no token. */
export const isUser = () => caller?.is_user ?? false;

/** The name as which one decides; null: there is none. */
export const ownName = () => caller?.name ?? null;

/** The control, which says why where it does not work. */
export function needs(scope, control) {
	const reason = lacks(scope);
	if (reason) Object.assign(control, { disabled: true, title: reason });
	return control;
}

/** What the header says of a user, and of a token that may not do everything; null: nothing. */
export function rights() {
	if (!caller || (!caller.is_user && caller.scopes.includes("admin"))) return null;
	const scopes = caller.scopes.join(", "), holder = caller.is_user ? "Your account" : "Your token";
	const may = caller.role ?? (scopes === "read" ? "read only" : `may ${scopes}`);
	const title = `${holder}${caller.name === null ? "" : ` '${caller.name}'`} has the scopes ${scopes}.${caller.scopes.includes("admin") ? "" : " Other buttons are disabled."}`;
	return tag(caller.scopes.includes("admin") ? "good" : "stop", caller.is_user ? `${caller.name} · ${may}` : may, "muted", title);
}

/** A button that is busy while its action goes on, and tells when it fails. `needs`: the scope of the token. */
export function action(label, act, { needs: scope = null, ...props } = {}) {
	const button = needs(scope, h("button", { ...props, text: label }));
	button.addEventListener("click", async () => {
		if (button.getAttribute("aria-busy") === "true") return;
		button.setAttribute("aria-busy", "true");
		try {
			await act(button);
		} catch (error) {
			if (error.name !== "AbortError") note(error.message, "bad");
		} finally {
			button.removeAttribute("aria-busy");
		}
	});
	return button;
}

/** Rows by key: those that did not change keep their element, and with it focus and selection. */
export class Rows {
	constructor(parent) {
		this.parent = parent;
		this.known = new Map();
	}

	show(items, key, sign, make) {
		const seen = new Set();
		let before = null;
		for (const item of items) {
			const id = key(item), signature = sign(item);
			seen.add(id);
			let row = this.known.get(id);
			if (!row || row.signature !== signature) {
				const el = make(item);
				if (row) row.el.replaceWith(el);
				row = { el, signature };
				this.known.set(id, row);
			}
			const place = before ? before.nextSibling : this.parent.firstChild;
			if (place !== row.el) this.parent.insertBefore(row.el, place);
			before = row.el;
		}
		for (const [id, row] of this.known) {
			if (seen.has(id)) continue;
			row.el.remove();
			this.known.delete(id);
		}
	}
}

/** Whether these facts differ from those that were last shown under that name. */
export function changed(owner, name, facts) {
	const signature = JSON.stringify(facts);
	owner.shown ??= {};
	if (owner.shown[name] === signature) return false;
	owner.shown[name] = signature;
	return true;
}

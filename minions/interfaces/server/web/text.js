// Texts and values of any size: long ones are cut, with a way to see all of them.

import { action, copyButton, count, h, pretty } from "./dom.js";

/** How many characters of each value the server is asked for. */
export const CUT = 8_000;
const MOST_LAID_OUT = 2_000_000, CHUNK = 20_000;

/**
 * What the server left out of a response. `load(path)` gives a value in whole; `at(path)` is for `shown`:
 * null where the value at that path is complete.
 */
export class Cuts {
	constructor(parts, load) {
		this.parts = parts ?? [];
		this.load = load;
	}

	at(path) {
		const own = this.parts.filter((each) => each.path === path || each.path.startsWith(`${path}/`));
		if (!own.length) return null;
		const text = own.find((each) => each.path === path);
		return { load: () => this.load(path), size: text ? text.total : null, digest: own.map((each) => each.digest).join() };
	}

	/** The value with what is not shown told apart: two values are the same if and only if these are. */
	sign(value, path) {
		return JSON.stringify([value, this.at(path)?.digest]);
	}
}

/** A value as code, with a button that copies it. */
export function code(value, label, cut = null) {
	return shown(value, label, cut, (text) => h("pre", { tabindex: "0", "aria-label": label ?? "Text", role: "region" }, chunks(text)), "div.code", true);
}

/** A text as it was written. */
export const prose = (text, label, cut = null) => shown(text, label, cut, (part) => h("pre.text", chunks(part)), "div.prose", false);

/** Text that looks like JSON as code, other text as it is. */
export const said = (text, label, cut = null) => (/^\s*[[{]/.test(text) ? code : prose)(text, label, cut);

/** Promises of texts that were asked for in whole, by what tells these and their places apart: a view that is drawn again shows them so. */
const OPENED = new Map();
const MOST_OPENED = 20;

function opened(key, load) {
	const text = load();
	OPENED.set(key, text);
	text.catch(() => OPENED.delete(key));
	if (OPENED.size > MOST_OPENED) OPENED.delete(OPENED.keys().next().value);
	return text;
}

function shown(value, label, cut, make, look, hasCopy) {
	const whole = typeof value === "string" && value.length > MOST_LAID_OUT ? value : pretty(value);
	const text = whole.length > CUT ? whole.slice(0, CUT) : whole;
	const box = h(look, make(text));
	const all = cut ? cut.load : text.length < whole.length ? async () => value : null;
	if (hasCopy) box.append(copyButton(all ? async () => pretty(await all()) : whole, label));
	if (all) {
		const size = cut ? cut.size : whole.length;
		const what = label ? ` ${label.toLowerCase()}` : "";
		const key = `${label}:${cut ? cut.digest : whole}`;
		const put = (text) => {
			box.querySelector("pre").replaceWith(make(text));
			more.remove();
		};
		const button = action(size === null ? `Show all of it` : `Show all ${count(size)} characters`, async () => {
			put(await opened(key, async () => pretty(await all())));
			box.querySelector("pre").focus();
		}, { class: "quiet", "aria-label": `Show all of the${what || " text"}` });
		const more = h("p.more", h("span.muted", "Only the beginning is shown. "), button);
		box.append(more);
		OPENED.get(key)?.then(put, () => {});
	}
	return box;
}

/** Text in parts that the browser lays out only where they are seen. */
function chunks(text) {
	if (text.length <= 2 * CHUNK) return [text];
	const parts = [];
	for (let from = 0; from < text.length;) {
		const wanted = from + CHUNK, line = text.lastIndexOf("\n", wanted), word = text.lastIndexOf(" ", wanted);
		const end = wanted >= text.length ? text.length : line > from ? line + 1 : word > from ? word + 1 : wanted;
		parts.push(h("span.chunk", { text: text.slice(from, end) }));
		from = end;
	}
	return parts;
}

/** The last words of a text that grows. */
export const tail = (text) => (text.length > 2 * CUT ? `…${text.slice(-CUT)}` : text);

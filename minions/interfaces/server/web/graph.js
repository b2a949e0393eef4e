// The picture of a recipe, drawn by the server, with the states of a run on it.

import { get } from "./api.js";
import { plain, s, shape, statusOf } from "./dom.js";

const ELEMENTS = new Set(["svg", "title", "defs", "marker", "rect", "path", "circle", "text", "g"]);
const SVG = "http://www.w3.org/2000/svg";
const CLASSES = { completed: "has-completed", partial: "is-waiting", failed: "has-failed", waiting: "is-waiting", running: "is-open", skipped: "has-not-run", pending: "has-not-run" };
const STYLE = /<style>([^<]*)<\/style>/;
let hasStyle = false;

/** A copy with drawing elements only: no scripts, links or listeners, whoever drew it. */
function copied(node) {
	const el = s(node.localName);
	for (const { name, value } of node.attributes) {
		if (!name.startsWith("on") && !name.includes("href") && name !== "style" && name !== "xmlns") el.setAttribute(name, value);
	}
	for (const child of node.childNodes) {
		if (child.nodeType === Node.TEXT_NODE) el.append(plain(child.data));
		else if (child.namespaceURI === SVG && ELEMENTS.has(child.localName)) el.append(copied(child));
	}
	return el;
}

/** Inline styles are not allowed here; constructed sheets are. Rules for the dark follow the page's theme. */
function adopt(text) {
	if (hasStyle || !text) return;
	hasStyle = true;
	const sheet = new CSSStyleSheet(), dark = new CSSStyleSheet(), theme = window.minionsTheme;
	sheet.replaceSync(text);
	const rules = [...sheet.cssRules], isDark = (rule) => rule instanceof CSSMediaRule;
	dark.replaceSync(rules.filter(isDark).flatMap((rule) => [...rule.cssRules]).map((rule) => rule.cssText).join("\n"));
	for (let at = rules.length - 1; at >= 0; at -= 1) if (isDark(rules[at])) sheet.deleteRule(at);
	document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet, dark];
	const follow = () => (dark.disabled = !theme.isDark);
	theme.events.addEventListener("change", follow);
	follow();
}

/** The drawing as an element: `text` is SVG, `label` says what it shows. */
export function drawing(text, label) {
	adopt(STYLE.exec(text)?.[1]);
	const el = copied(new DOMParser().parseFromString(text.replace(STYLE, ""), "image/svg+xml").documentElement);
	el.setAttribute("role", "group");
	el.setAttribute("aria-label", label);
	el.querySelector(":scope > title")?.remove();
	el.querySelector(":scope > .name")?.remove();
	return el;
}

export class Graph {
	/** Null where the server has no picture of it. */
	static async load(path, signal, onPick) {
		try {
			const [data, text] = await Promise.all([get(path, { signal }), get(`${path}?format=svg`, { signal })]);
			return new Graph(data, text, onPick);
		} catch (error) {
			if (error.name === "AbortError") throw error;
			return null;
		}
	}

	constructor(data, text, onPick) {
		this.ids = data.nodes.map((node) => node.id);
		this.kinds = new Map(data.nodes.map((node) => [node.id, node.kind]));
		this.el = drawing(text, `Steps of ${data.recipe}`);
		this.crop();
		this.nodes = new Map();
		[...this.el.querySelectorAll(":scope > g")].forEach((g, at) => this.prepare(g, this.ids[at], onPick));
	}

	/** The page has a heading of its own: without the drawing's. */
	crop() {
		const [x, y, width, height] = this.el.getAttribute("viewBox").split(" ").map(Number);
		const off = 34;
		this.el.setAttribute("viewBox", `${x} ${y + off} ${width} ${height - off}`);
		[this.left, this.width, this.height] = [x, width, height - off];
		this.isWide = width > 640;
	}

	prepare(g, id, onPick) {
		g.setAttribute("tabindex", "0");
		g.setAttribute("role", "button");
		g.addEventListener("click", () => onPick(id, g));
		g.addEventListener("keydown", (event) => {
			if (event.key !== "Enter" && event.key !== " ") return;
			event.preventDefault();
			onPick(id, g);
		});
		const box = g.querySelector("rect.box");
		const right = Number(box.getAttribute("x")) + Number(box.getAttribute("width"));
		const bottom = Number(box.getAttribute("y")) + Number(box.getAttribute("height"));
		this.nodes.set(id, { g, right, bottom, base: g.getAttribute("class"), shown: null });
	}

	/** `states`: id to {status, note}. */
	show(states, open) {
		for (const [id, node] of this.nodes) {
			const { status = "pending", note = "" } = states(id) ?? {};
			const signature = `${status} ${note} ${id === open}`;
			if (signature === node.shown) continue;
			node.shown = signature;
			node.g.setAttribute("class", `${node.base} node ${CLASSES[status] ?? "is-open"} ${id === open ? "picked" : ""}`);
			node.g.querySelector(".badge")?.remove();
			if (status !== "pending") this.mark(node, status, note);
			// What is read aloud has what is seen, so that it can be said to choose the node.
			const seen = [...node.g.querySelectorAll("text")].map((each) => each.textContent).join(" ");
			node.g.setAttribute("aria-label", `Step ${id}: ${statusOf(status).word}. ${seen}`);
		}
	}

	mark(node, status, note) {
		const { kind, word } = statusOf(status), text = note ? `${word} ${note}` : word, top = node.bottom - 10;
		const words = s("text", { y: top + 14 }, text), mark = shape(kind), pill = s("rect", { y: top, height: 20, rx: 10 });
		node.g.append(s("g", { class: `badge ${kind}`, "aria-hidden": "true" }, pill, mark, words));
		const width = 32 + (words.getComputedTextLength() || text.length * 7), left = Math.max(this.left + 2, node.right - width - 8);
		for (const [el, x] of [[pill, left], [mark, left + 8], [words, left + 24]]) el.setAttribute("x", x);
		for (const [name, value] of [["y", top + 4], ["width", 12], ["height", 12]]) mark.setAttribute(name, value);
		pill.setAttribute("width", width);
	}
}

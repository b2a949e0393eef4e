// Saved views: names for addresses of lists, kept in this browser. Others get the address itself.

import { here } from "./address.js";
import { h } from "./dom.js";

const KEY = "minions.views", MOST = 30;
const changes = new EventTarget();

/** The saved views, [{name, place}]: `place` is an address behind the hash. */
export function savedViews() {
	try {
		const kept = JSON.parse(localStorage.getItem(KEY) ?? "[]");
		return Array.isArray(kept) ? kept.filter((each) => typeof each?.name === "string" && /^\/\w/.test(each.place)) : [];
	} catch {
		return []; // this browser keeps nothing, or something else wrote there
	}
}

/** False: this browser keeps nothing. */
function keep(views) {
	try {
		localStorage.setItem(KEY, JSON.stringify(views));
	} catch {
		return false;
	}
	changes.dispatchEvent(new Event("change"));
	return true;
}

/** The part of the navigation that leads to them; `signal` ends it. */
export function savedLinks(signal) {
	const el = h("div.saved", { role: "group", "aria-label": "Saved views" });
	const show = () => {
		const views = savedViews(), place = address();
		el.hidden = !views.length;
		el.replaceChildren(...views.map((view) => h("span.saved-view",
			h("a", { href: `#${view.place}`, title: view.name, "aria-current": view.place === place && "page" }, view.name),
			h("button.quiet", { "aria-label": `Remove the saved view ${view.name}`, onclick: () => {
				keep(savedViews().filter(({ name }) => name !== view.name));
				(el.querySelector("a") ?? document.getElementById("main")).focus();
			} }, h("span", { "aria-hidden": "true" }, "×")))));
	};
	changes.addEventListener("change", show, { signal });
	window.addEventListener("storage", (event) => event.key === KEY && show(), { signal });
	window.addEventListener("hashchange", show, { signal });
	show();
	return el;
}

/** Saves the address that the list has, under a name that is asked for. */
export function saveView() {
	const input = h("input", { id: "view-name", required: true, maxlength: "40", autocomplete: "off", placeholder: "Name of the view", "aria-label": "Name of the view" });
	const error = h("span.field-error", { role: "alert" });
	const open = h("button", { onclick: () => turn(true) }, "Save this view");
	const form = h("form.row", { hidden: true, novalidate: true,
		onsubmit: (event) => {
			event.preventDefault();
			const name = input.value.trim(), others = savedViews().filter((each) => each.name !== name);
			if (!name) error.textContent = "The view needs a name.";
			else if (others.length >= MOST) error.textContent = `There are ${MOST} saved views; remove one first.`;
			else if (keep([...others, { name, place: address() }])) turn(false);
			else error.textContent = "This browser keeps nothing. The address of the page is the view, too.";
		},
		onkeydown: (event) => event.key === "Escape" && turn(false) },
	input, h("button", { type: "submit" }, "Save"), error);
	const turn = (isOpen) => {
		[form.hidden, open.hidden, error.textContent, input.value] = [!isOpen, isOpen, "", ""];
		(isOpen ? input : open).focus();
	};
	return h("div.row", open, form);
}

/** The address of the view, on its first page. */
function address() {
	const { path, query } = here();
	query.delete("page");
	return `/${path.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

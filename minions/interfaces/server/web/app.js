// The frame around the views: routes by hash, the token, the header, keys.

import { connection, connectionState, followChanges, get, hasToken, keepToken, noAnswer, takeTokenFromAddress } from "./api.js";
import { go, here } from "./address.js";
import { LINE, callout, empty, fill, h, loading, problem, rights, setCaller, shape } from "./dom.js";
import { savedLinks } from "./saved.js";

const [main, top_, side] = ["main", "top", "side"].map((id) => document.getElementById(id));
const NAV = [["/inbox", "Inbox"], ["/runs", "Runs"], ["/sessions", "Sessions"], ["/batches", "Batches"], ["/evaluations", "Evaluations"], ["/schedules", "Schedules"], ["/work", "Workers and queues"], ["/recipes", "Recipes"], ["/costs", "Costs"], ["/system", "System"]];
const OF_ALL = new Set(["/batches", "/evaluations", "/schedules", "/work", "/projects"]); // views that count the runs of all users
const MOVED = { approvals: "inbox" }; // links that were sent out earlier
// Each is loaded when it is wanted; the second of a line is that of one item.
const VIEWS = {
	runs: [async () => (await import("./runs.js")).showRuns, async () => (await import("./run.js")).showRun],
	new: [async () => (await import("./runs.js")).showNew],
	sessions: [async () => (await import("./session.js")).showSessions, async () => (await import("./session.js")).showSession],
	inbox: [async () => (await import("./approvals.js")).showInbox],
	batches: [async () => (await import("./batches.js")).showBatches],
	evaluations: [async () => (await import("./evaluations.js")).showEvaluations],
	schedules: [async () => (await import("./work.js")).showSchedules],
	work: [async () => (await import("./work.js")).showWork],
	recipes: [async () => (await import("./system.js")).showRecipes],
	costs: [async () => (await import("./costs.js")).showCosts],
	compare: [async () => (await import("./compare.js")).showCompare],
	system: [async () => (await import("./system.js")).showSystem],
	projects: [async () => (await import("./projects.js")).showProjects],
};
const TITLES = { runs: "Runs", new: "Start a run", sessions: "Sessions", inbox: "Inbox", batches: "Batches", evaluations: "Evaluations", schedules: "Schedules", work: "Workers and queues", recipes: "Recipes", costs: "Costs", compare: "Compare", system: "System", projects: "All projects" };

let leaving = null, where = null, update = null;

/** The view of a path, or null: there is none. */
async function viewOf([name, item]) {
	if (!Object.hasOwn(VIEWS, name)) return null;
	const [all, one = all] = VIEWS[name];
	try {
		return await (item ? one : all)();
	} catch {
		throw noAnswer(); // the server is gone, or has other files by now
	}
}

/** On a small screen the views stand in a line that is scrolled, and that grows when the count of the inbox comes. */
const showCurrent = () => side.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "center" });

async function route() {
	if (!hasToken()) {
		showLogin();
		return;
	}
	const { path, query } = here();
	if (!path.length || Object.hasOwn(MOVED, path[0])) {
		go(path.length ? `/${MOVED[path[0]]}` : "/runs", { replace: true });
		return;
	}
	const place = path.join("/");
	if (place === where && update) {
		update(query);
		return;
	}
	const isFirst = where === null;
	leaving?.abort();
	leaving = new AbortController();
	const { signal } = leaving;
	where = place;
	update = null;
	document.body.classList.remove("has-drawer");
	const title = TITLES[path[0]] ?? "Not found";
	document.title = `${title} · Minions`;
	for (const link of side.querySelectorAll(":scope > a")) {
		if (link.getAttribute("href") === `#/${path[0]}`) {
			link.setAttribute("aria-current", "page");
			showCurrent();
		} else link.removeAttribute("aria-current");
	}
	const root = h("div.view", h("h1", title), loading(title.toLowerCase()));
	fill(main, root);
	window.scrollTo(0, 0);
	if (!isFirst) main.focus({ preventScroll: true });
	try {
		const view = await viewOf(path);
		if (signal.aborted) return;
		if (!view) {
			fill(root, h("h1.away", "Not found"), empty("There is no such page", h("p", h("a", { href: "#/runs", text: "All runs" }))));
			return;
		}
		const next = await view({ root, path, query, signal });
		if (!signal.aborted) update = next ?? null;
	} catch (error) {
		if (signal.aborted || error.name === "AbortError") return;
		if (!error.status) connection.addEventListener("change", () => connectionState() === "live" && ((where = null), route()), { signal });
		fill(root, h("h1", title), problem(error), h("p", h("a", { href: "#/runs" }, "All runs")));
	}
}

// --- the token

/** Asks for the token; `refused`: why that before was not taken. */
function showLogin(refused = "") {
	leaving?.abort();
	[leaving, where, update] = [null, null, null];
	top_.hidden = side.hidden = true;
	document.title = "Minions";
	const input = h("input", { type: "password", id: "token", name: "token", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-hint token-error" });
	const error = h("p.field-error", { id: "token-error", role: "alert", text: refused });
	if (refused) input.setAttribute("aria-invalid", "true");
	const enter = async (event) => {
		event.preventDefault();
		const token = input.value.trim();
		if (!token) return;
		keepToken(token);
		try {
			await get("/system");
			begin();
		} catch (problem_) {
			if (problem_.status !== 401) error.textContent = problem_.message; // 401 shows this again by itself
		}
	};
	document.body.classList.remove("has-drawer");
	fill(main, h("div.login", h("form.panel", { novalidate: true, onsubmit: enter },
		h("h1.row", logo(), "Minions"),
		h("div.field", h("label", { for: "token", text: "Token" }), input,
			h("p.hint", { id: "token-hint" }, h("code", "minions serve"), " prints it when it starts. It is kept until this tab is closed."), error),
		h("button", { type: "submit", class: "primary", text: "Enter" }))));
	input.focus();
}

const logo = () => h("img", { src: "icon.svg", alt: "", width: "20", height: "20" });

// --- the header

async function begin() {
	viewOf(here().path.length ? here().path : ["runs"]).catch(() => {}); // while the server says who is there
	const known = await get("/system").catch((error) => error);
	if (known.status === 401) return; // the token is asked for already
	if (known.code === "missing-role") {
		top_.hidden = side.hidden = true;
		fill(main, h("div.view", h("h1", { text: "No role" }), problem(known)));
		return;
	}
	setCaller(known.caller ?? null);
	const badge = h("span.count", { hidden: true });
	const isForAll = !known.caller?.user || known.caller.scopes.includes("all");
	const own = known.project_name, all = own === null ? NAV : [...NAV, ["/projects", "All projects"]];
	const links = all.filter(([href]) => isForAll || !OF_ALL.has(href)).map(([href, label]) => h("a", { href: `#${href}` }, label, href === "/inbox" ? badge : null));
	const line = h("span.line", { role: "status" });
	const showLine = () => {
		const state = connectionState();
		const [kind, word] = LINE[state];
		line.className = `line ${kind}`;
		fill(line, shape(kind), h("span", word));
	};
	fill(top_, h("a.brand", { href: "#/runs", "aria-label": "Minions, all runs" }, logo(), h("span", "Minions")),
		own === null ? null : h("strong", { title: "The project of this page" }, own),
		line, rights(), themeChoice(), h("a.button.primary", { href: "#/new", text: "Start a run" }));
	counting?.abort();
	counting = new AbortController();
	const { signal } = counting;
	fill(side, links, savedLinks(signal));
	top_.hidden = side.hidden = false;
	connection.addEventListener("change", showLine, { signal });
	showLine();
	const showTotal = (total) => {
		const grows = badge.hidden === Boolean(total);
		badge.hidden = !total;
		badge.textContent = String(total);
		badge.setAttribute("aria-label", `${total} waiting`);
		if (grows) showCurrent();
	};
	followChanges(signal, showTotal);
	where = null;
	route();
}

let counting = null;

function themeChoice() {
	const theme = window.minionsTheme;
	const words = { auto: "Auto", light: "Light", dark: "Dark" };
	const select = h("select.theme", { "aria-label": "Theme", onchange: () => theme.keep(select.value) }, theme.names.map((name) => h("option", { value: name }, words[name])));
	select.value = theme.name;
	theme.events.addEventListener("change", () => (select.value = theme.name));
	return select;
}

// --- a login that has ended

const relogin = h("div.relogin");
document.body.append(relogin);
connection.addEventListener("change", () => {
	if (connectionState() !== "logged-out") relogin.replaceChildren();
	else if (!relogin.firstChild) {
		// The view stays: what was written in it can be copied first.
		fill(relogin, callout("bad", "Your login has ended", "The proxy in front of the server wants a new login. What runs goes on; what you have written here and not sent is lost when the page is loaded again.", null,
			h("p", h("button", { onclick: () => location.reload() }, "Reload to log in"))));
	}
});

// --- keys

document.addEventListener("keydown", (event) => {
	const isTyping = event.target.closest?.("input, textarea, select, dialog");
	if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
		const filter = document.getElementById("filter");
		if (!filter) return;
		event.preventDefault();
		filter.focus();
		filter.select();
	} else if (event.key === "Escape" && !event.target.closest?.("dialog")) {
		const close = document.querySelector(".drawer:not([hidden]) .close");
		if (close) close.click();
		else if (event.target.id === "filter") event.target.blur();
	}
});
document.querySelector("[data-skip]").addEventListener("click", (event) => {
	event.preventDefault();
	main.focus();
});
connection.addEventListener("refused", ({ detail }) => {
	counting?.abort();
	showLogin(detail);
});
window.addEventListener("hashchange", () => {
	if (location.hash.startsWith("#token=")) {
		takeTokenFromAddress();
		begin();
	} else route();
});

takeTokenFromAddress();
if (!hasToken()) keepToken(""); // behind a proxy that says who it is none is needed
begin();

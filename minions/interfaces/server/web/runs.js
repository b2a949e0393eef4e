// The list of runs, and the form that begins one.

import { enc, get, post } from "./api.js";
import { between, callout, chip, cost, count, duration, empty, fill, h, loading, needs, plural, shortId, statusOf, time, tag } from "./dom.js";
import { Fields } from "./form.js";
import { LiveList, ProjectFilter, cell, choice, main, num, offer, projectHint, state } from "./list.js";
import { saveView } from "./saved.js";
import { go } from "./address.js";

const STATUSES = ["queued", "running", "interrupted", "completed", "partial", "failed", "limit_reached", "needs_decision", "cancelled", "rejected", "unreadable"];

export async function showRuns({ root, query, signal }) {
	const picked = new Set();
	const recipe = choice("Recipe", "Any recipe"), projects = new ProjectFilter(signal);
	const compare = h("button.wide-only", { onclick: () => go(`/compare?${[...picked].map((id, at) => `${"ab"[at]}=${enc(id)}`).join("&")}`) });
	const list = new LiveList({
		signal, name: "runs", search: { isWhole, offer: suggest },
		heads: ["", "Status", "Recipe", "Inputs", "Started", "Duration", "Tokens", "Cost", "Run"],
		key: (run) => run.run_id,
		filters: [
			{ name: "status", label: "status", control: choice("Status", "Any status", STATUSES.map((each) => [each, statusOf(each).word])), word: (value) => statusOf(value).word },
			{ name: "recipe", label: "recipe", control: recipe, word: (value) => value },
			projects.filter,
			{ name: "session", label: "session", word: shortId },
			{ name: "text", label: "words" },
		],
		row,
		none: empty("No runs yet",
			h("p", "A run is one execution of a recipe. It appears here while it runs, also when it was begun on the command line with the same database."),
			h("p", h("a.button.primary", { href: "#/new" }, "Start a run")),
			h("p.muted", "or in a terminal: ", h("code", "minions run recipes/quickstart.yaml"))),
		after: choose,
	});
	const alarms = h("div.stack");
	const offered = h("datalist", { id: "search-terms" });
	list.words.setAttribute("list", offered.id);
	list.words.title = "Words, “words in a row”, status:failed, recipe:…, user:…, project:…, session:…, since:2d, cost>0.01, tokens>=1000";
	list.foot.append(saveView());
	fill(root, h("div.head", h("h1", "Runs"), h("div.row.tools", list.tools, offered, compare)), alarms, list.el, list.foot);
	suggest("");

	function suggest(text) {
		const seen = (name) => [...new Set((list.items ?? []).map((run) => run[name]).filter(Boolean))];
		const values = { status: STATUSES, recipe: [...recipe.options].map(({ value }) => value).filter(Boolean), user: seen("user"), project: seen("project"), since: ["1h", "1d", "7d", "30d"] };
		offered.replaceChildren(...completions(text, values).map((value) => h("option", { value })));
	}

	function row(run) {
		const { status } = run, isOn = status === "running";
		const pick = h("input", { type: "checkbox", checked: picked.has(run.run_id), "aria-label": `Pick ${run.run_id} to compare`,
			onchange: () => {
				picked[pick.checked ? "add" : "delete"](run.run_id);
				choose();
			} });
		const length = h("span", run.finished_at || isOn ? duration(between(run.started_at, run.finished_at)) : "–");
		if (isOn) length.dataset.since = run.started_at;
		return h("tr",
			h("td.pick", pick),
			state("Status", chip(status, status === "interrupted" && "Its process died before the end was recorded; it can be resumed.")),
			main("Recipe", h("a.strong", { href: `#/runs/${enc(run.run_id)}` }, run.recipe), run.digest ? h("span.muted", { title: `The text of the recipe: ${run.digest}` }, ` ${run.version}`) : null, h("div.hint.clip", { title: run.model }, run.model ?? "no model")),
			h("td.about", { data: { label: "Inputs" }, title: run.about }, run.about ?? h("span.muted", "–")), cell("Started", time(run.started_at)),
			num("Duration", length), num("Tokens", count(run.usage.total_tokens)), num("Cost", cost(run.usage)),
			cell("Run", h("code", { title: run.run_id }, shortId(run.run_id)), projectHint(run)));
	}

	function choose() {
		for (const box of list.body.querySelectorAll("input")) box.disabled = picked.size >= 2 && !box.checked;
		projects.take(list.items ?? []);
		compare.disabled = picked.size !== 2;
		compare.textContent = ["Compare two", "Pick one more", "Compare these two"][picked.size];
	}

	const tick = setInterval(() => {
		for (const el of list.body.querySelectorAll("[data-since]")) el.textContent = duration(between(el.dataset.since));
	}, 500);
	signal.addEventListener("abort", () => clearInterval(tick));
	choose();
	await list.begin(query);
	const load = async () => {
		const { recipes } = await get("/recipes?limit=1000", { signal });
		offer(recipe, recipes.map(({ id }) => [id, id]));
		fill(alarms, recipes.flatMap(watchAlarms));
	};
	load().catch(() => {}); // only offered
	return (next) => list.take(next);
}

const TERMS = ["status:", "recipe:", "user:", "project:", "session:", "since:", "cost>", "cost<", "tokens>", "tokens<"];
const MOST_OFFERED = 20;

/** Whether the last term of a search is not left open: a search that is still typed is not asked for. */
function isWhole(text) {
	return (text.split('"').length - 1) % 2 === 0 && !/(^|\s)[A-Za-z_]+(:|[<>]=?)$/.test(text);
}

/** The text with its last term completed, in each way that there is; `values`: of keys that have some. */
function completions(text, values) {
	const [term] = /[^\s"]*$/.exec(text), before = text.slice(0, text.length - term.length);
	if ((before.split('"').length - 1) % 2) return [];
	const [key, part] = term.includes(":") ? term.split(/:(.*)/s) : [null, term];
	const begins = (word) => word.toLowerCase().startsWith(part.toLowerCase());
	const found = key === null
		? TERMS.filter(begins)
		: (values[key.toLowerCase()] ?? []).filter((value) => begins(value) && !value.includes('"')).map((value) => `${key}:${/\s/.test(value) ? `"${value}"` : value}`);
	return found.slice(0, MOST_OFFERED).map((each) => before + each);
}

/** What scorers of the recipe's `watch` say of runs that got worse. */
function watchAlarms({ id, watch }) {
	const share = (value) => `${Math.round(value * 100)} %`;
	return (watch?.scorers ?? []).filter((each) => each.alarm_since).map((each) =>
		callout("bad", `Runs of ${id} got worse`,
			`${each.scorer}: ${share(each.rate)} of the newest pass (${share(each.low)} to ${share(each.high)})${each.before === null ? "" : `, at first ${share(each.before)}`}.`, null,
			h("p", "Since ", time(each.alarm_since), each.run_id && [". The newest that did not pass: ", h("a", { href: `#/runs/${enc(each.run_id)}` }, shortId(each.run_id))])));
}

// --- a new run

export async function showNew({ root, query, signal }) {
	fill(root, h("h1", "Start a run"), loading("recipes"));
	const all = (await get("/recipes?limit=1000", { signal })).recipes, wanted = query.get("recipe"), like = query.get("like");
	const place = h("section.panel", h("p.muted", "Choose a recipe; its inputs are asked for here."));
	const links = all.map((recipe) => h("li", h("a.pick-recipe", { href: recipe.ok ? `#/new?recipe=${enc(recipe.id)}` : "#/recipes", "aria-current": recipe.id === wanted && "true" },
		h("span.strong", recipe.name || recipe.id),
		recipe.ok ? h("span.muted", recipe.description) : tag("bad", plural(recipe.fault_count, "fault")))));
	fill(root, h("h1", "Start a run"),
		all.length
			? h("div.split.new-run", h("nav.panel", { "aria-label": "Recipes" }, h("ul.plain", links)), place)
			: empty("No recipes here", h("p", "The server offers what lies in its recipes folder. Make one with ", h("code", "minions init"), " or start it with ", h("code", "minions serve --recipes DIR"), ".")));
	if (!wanted) return;
	const inputs = like ? await inputsOf(like, signal) : {};
	showForm(place, await get(`/recipes/${enc(wanted)}`, { signal }), inputs);
}

/** The whole inputs of a run, long ones too. */
async function inputsOf(run, signal) {
	return (await get(`/runs/${enc(run)}/value?at=/inputs`, { signal })).value ?? {};
}

/** `inputs`: of an earlier run, to begin with. */
function showForm(place, recipe, inputs) {
	const fields = new Fields(recipe.inputs, inputs);
	let key = "", keyOf = "";
	const start = needs("run", h("button", { type: "submit", class: "primary", text: "Start" }));
	const chat = recipe.is_agent ? needs("run", h("button", { text: "Open a conversation",
		onclick: async () => {
			try {
				const session = await post("/sessions", { recipe: recipe.id });
				go(`/sessions/${enc(session.id)}`);
			} catch (error) {
				fields.refuse(error);
			}
		} })) : null;
	const form = h("form", { novalidate: true,
		onsubmit: async (event) => {
			event.preventDefault();
			const inputs = fields.read();
			if (!inputs || start.disabled) return;
			start.disabled = true;
			const said = JSON.stringify(inputs);
			if (said !== keyOf) [key, keyOf] = [newKey(), said]; // asked again after a lost answer, it is the same run
			try {
				const run = await post("/runs", { recipe: recipe.id, inputs }, { headers: { "Idempotency-Key": key } });
				go(`/runs/${enc(run.run_id)}`);
			} catch (error) {
				fields.refuse(error);
			} finally {
				start.disabled = false;
			}
		} },
		fields.el,
		recipe.inputs.length ? null : h("p.muted", "This recipe takes no inputs."),
		h("div.row", start, chat));
	fill(place, h("h2", recipe.name || recipe.id), watchAlarms(recipe), recipe.description ? h("p", recipe.description) : null,
		h("p.muted", plural(recipe.steps.length, "step")), form);
	fields.fields[0]?.input.focus();
}

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

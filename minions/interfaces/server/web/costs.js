// What runs cost and used, how many failed and how long they took: over time, by recipe, model, user or project.

import { go } from "./address.js";
import { enc, get, onChange } from "./api.js";
import { callout, changed, cost, count, dateWords, duration, empty, fill, h, loading, plural, problem, s, short, time } from "./dom.js";
import { cell, choice, main, num, offer } from "./list.js";

const PERIODS = [["day", "Last 24 hours"], ["week", "Last 7 days"], ["month", "Last 30 days"]], BY = [["recipe", "By recipe"], ["model", "By model"], ["user", "By user"], ["project", "By project"]];
const HEADS = { recipe: "Recipe", model: "Model", user: "User", project: "Project" };
const PARTS = { day: "hour", week: "six hours", month: "day" };
const LEAST_PAUSE_MS = 5_000;
const HIGH = 96, WIDE = 10; // of a plot and of each of its bars, in its own units

const usd = (each) => (each.unpriced && !each.cost_usd ? "unknown" : cost({ total_tokens: each.tokens || each.cost_usd, cost_usd: each.cost_usd }));
const share = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");

/** What is drawn: the words of a total, and of each part its value, the part of it that stands out, and its words. */
const PLOTS = [
	{ name: "Cost", total: usd, value: (each) => each.cost_usd, words: usd, hint: (all) => (all.unpriced ? `not known of ${plural(all.unpriced, "run")}` : "as far as models have prices") },
	{ name: "Tokens", total: (all) => count(all.tokens), value: (each) => each.tokens, words: (each) => short(each.tokens), hint: (all) => `${count(all.runs ? Math.round(all.tokens / all.runs) : 0)} a run` },
	{ name: "Failures", total: (all) => share(all.failed, all.ended), value: (each) => each.runs, marked: (each) => each.failed, words: (each) => `${count(each.failed)} of ${plural(each.runs, "run")}`, hint: (all) => `${count(all.failed)} of ${plural(all.runs, "run")}; the pale bars are all runs` },
	{ name: "Time", total: (all) => duration(all.median_ms), value: (each) => each.slow_ms ?? 0, marked: (each) => each.median_ms ?? 0, isMiddle: true, words: (each) => (each.ended ? `half within ${duration(each.median_ms)}, 95 % within ${duration(each.slow_ms)}` : "none ended"), hint: (all) => `half of the runs within that; 95 % within ${duration(all.slow_ms)}` },
];

export async function showCosts({ root, query, signal }) {
	const controls = { period: choice("Period", "Last 24 hours", PERIODS.slice(1)), by: choice("Told apart", "By recipe", BY.slice(1)), recipe: choice("Recipe", "Any recipe") };
	const place = h("div.stack", loading("figures")), owner = {};
	let values = {}, asked = 0, busyUntil = 0;
	fill(root, h("div.head", h("h1", "Costs"), h("div.row.tools", Object.values(controls))), place);
	for (const [name, control] of Object.entries(controls)) control.addEventListener("change", () => {
		const { [name]: _, ...rest } = values;
		const kept = new URLSearchParams(control.value ? { ...rest, [name]: control.value } : rest);
		go(`/costs${kept.size ? `?${kept}` : ""}`);
	});
	async function load() {
		const own = ++asked, begun = performance.now();
		const figures = await get(`/costs?${new URLSearchParams(values)}`, { signal });
		if (own !== asked) return; // another address was asked for meanwhile
		busyUntil = performance.now() + Math.max(LEAST_PAUSE_MS, 4 * (performance.now() - begun));
		if (changed(owner, "figures", [values, figures])) fill(place, shown(figures, values));
	}
	async function take(query, isFirst = false) {
		values = {};
		for (const [name, control] of Object.entries(controls)) {
			const value = query.get(name) ?? "";
			if (value) values[name] = value;
			offer(control, value ? [[value, value]] : []).value = value;
		}
		try {
			await load();
		} catch (error) {
			if (error.name === "AbortError" || (isFirst && !error.status)) throw error; // no answer: the page waits for the connection
			changed(owner, "figures", null);
			fill(place, problem(error), h("p", h("button", { onclick: () => go("/costs") }, "Clear the filters")));
		}
	}
	await take(query, true);
	onChange("runs", signal, async () => {
		await new Promise((resolve) => setTimeout(resolve, Math.max(0, busyUntil - performance.now())));
		if (!signal.aborted) await load();
	});
	get("/recipes?limit=1000", { signal }).then(({ recipes }) => offer(controls.recipe, recipes.map(({ id }) => [id, id])), () => {}); // only offered
	return (next) => take(next).catch(() => {}); // another view came
}

function shown(figures, { period = "day", by = "recipe" }) {
	if (!figures.counted) return empty("No runs in this time", h("p.muted", "Choose a longer one, or start a run."));
	const at = (index) => new Date(Date.parse(figures.since) + index * figures.part_s * 1000).toISOString();
	const word = HEADS[by];
	const ends = [at(0), at(figures.all.parts.length)];
	return [
		figures.counted_since && callout("stop", "Not all runs were counted", `These are the newest ${count(figures.counted)}.`, null, h("p", "Those that started before ", time(figures.counted_since), " are left out.")),
		h("div.plots", PLOTS.map((plot) => h("section.panel.plot", { "aria-label": plot.name },
			h("h2", plot.name), h("p.figure", plot.total(figures.all.total)), h("p.hint", plot.hint(figures.all.total)),
			drawn(plot, figures.all.parts, at, `${plot.name} by ${PARTS[period]}`),
			h("p.scale-ends.hint", time(ends[0]), h("span", "now"))))),
		h("table.list.cards.costs", h("caption.away", `Figures by ${by}`),
			h("thead", h("tr", [[word], ["Runs", "num"], ["Failed", "num"], ["Tokens", "num"], ["Cost", "num"], ["Half within", "num"], ["95 % within", "num"], ["Cost over time"]].map(([head, look]) => h("th", { scope: "col", class: look ?? null, text: head })))),
			h("tbody", figures.groups.map((each) => row(each, word, by, at, period)))),
		h("details", h("summary", "Each part as a table"), h("table.list.cards.parts", h("caption.away", "Figures of each part"),
			h("thead", h("tr", [["From"], ["Runs", "num"], ["Failed", "num"], ["Tokens", "num"], ["Cost", "num"], ["Half within", "num"], ["95 % within", "num"]].map(([head, look]) => h("th", { scope: "col", class: look ?? null, text: head })))),
			h("tbody", figures.all.parts.map((each, index) => h("tr", main("From", time(at(index))), numbers(each)))))),
	];
}

const numbers = (each) => [
	num("Runs", count(each.runs)), num("Failed", each.failed ? `${count(each.failed)} (${share(each.failed, each.ended)})` : "0"), num("Tokens", count(each.tokens)),
	num("Cost", usd(each), each.unpriced && each.cost_usd ? h("div.hint", `not known of ${count(each.unpriced)}`) : null), num("Half within", duration(each.median_ms)), num("95 % within", duration(each.slow_ms)),
];

function row({ name, total, parts }, word, by, at, period) {
	const isListed = by !== "model" && name !== "other" && name !== `no ${by}`;
	const text = isListed ? h("a.strong", { href: by === "user" ? `#/runs?q=${enc(`user:"${name}"`)}` : `#/runs?${by}=${enc(name)}` }, name) : h("span.strong", name);
	return h("tr", main(word, text), numbers(total), cell("Cost over time", drawn(PLOTS[0], parts, at, `Cost of ${name} by ${PARTS[period]}`, "line-plot")));
}

/** Bars for each part; what is marked stands in front of the whole. Each says its figures on hover, and all of it its highest. */
function drawn({ value, marked, words, isMiddle }, parts, at, label, look = "bars") {
	const most = Math.max(...parts.map(value)), width = parts.length * WIDE;
	const highest = parts.findIndex((each) => value(each) === most);
	const place = (index) => dateWords(at(index));
	const said = most > 0 ? `${label}; highest at ${place(highest)}: ${words(parts[highest])}` : `${label}; nothing`;
	const bar = (index, height, kind) => (height > 0 ? [s("rect", { class: kind, x: index * WIDE + 1, width: WIDE - 2, y: HIGH - height, height })] : []);
	const high = (of) => (most > 0 && of > 0 ? Math.max(1, (of / most) * HIGH) : 0);
	return s("svg", { class: look, viewBox: `0 0 ${width} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": said },
		...parts.map((each, index) => {
			const title = s("title", {});
			title.textContent = `${place(index)}: ${words(each)}`;
			return s("g", {}, title, s("rect", { class: "room", x: index * WIDE, width: WIDE, y: 0, height: HIGH }), ...bar(index, high(value(each)), marked ? "whole" : "value"), ...(marked ? bar(index, high(marked(each)), isMiddle ? "value" : "bad-part") : []));
		}));
}

// Two runs side by side.

import { enc, get } from "./api.js";
import { between, chip, cost, count, dateWords, duration, empty, fill, h, loading, pretty, problem, shortId, time } from "./dom.js";
import { go } from "./address.js";
import { loadRun } from "./run.js";
import { CUT, Cuts, code } from "./text.js";
import { wordDiff } from "./words.js";

export async function showCompare({ root, query, signal }) {
	const ids = [query.get("a"), query.get("b")];
	const [{ runs }, ...views] = await Promise.all([get("/runs?limit=200", { signal }), ...ids.map((id) => id && loadRun(id, signal))]);
	fill(root, h("h1", "Compare two runs"), h("div.two", ids.map((_, at) => picker(runs, ids, at))),
		views.every(Boolean) ? comparison(...views, signal) : empty("Pick two runs", h("p.muted", runs.length < 2 ? "There have to be two runs first." : "Runs of the same recipe tell the most.")));
}

function picker(runs, ids, at) {
	const other = runs.find((run) => run.run_id === ids[1 - at]);
	const sorted = [...runs].sort((a, b) => (b.recipe === other?.recipe) - (a.recipe === other?.recipe));
	const known = sorted.some((run) => run.run_id === ids[at]);
	const select = h("select", { onchange: () => {
		const next = [...ids];
		next[at] = select.value;
		go(`/compare?${next.map((id, place) => (id ? `${"ab"[place]}=${enc(id)}` : "")).filter(Boolean).join("&")}`, { replace: true });
	} },
	h("option", { value: "", text: "Choose a run…" }),
	ids[at] && !known ? h("option", { value: ids[at], text: ids[at] }) : null,
	sorted.filter((run) => run.run_id !== ids[1 - at]).map((run) => h("option", { value: run.run_id, text: `${run.recipe}, ${run.status.replaceAll("_", " ")}, ${shortId(run.run_id)}, ${dateWords(run.started_at)}` })));
	select.value = ids[at] ?? "";
	return h("label.field", h("span.strong", at ? "Run B" : "Run A"), select);
}

function comparison(a, b, signal) {
	const row = (name, make, { num = false, key } = {}) => {
		const texts = [a, b].map((view) => (key ? key(view) : null));
		const differs = key && texts[0] !== texts[1];
		return h("tr", { class: differs ? "differs" : null }, h("th", { scope: "row", text: name }), [a, b].map((view) => h("td", { class: num ? "tabular" : null }, make(view))), h("td.mark-cell", differs ? "differs" : ""));
	};
	const took = (view) => (view.finished_at ? between(view.started_at, view.finished_at) : null);
	const usage = (name) => (view) => count(view.usage[name]);
	return h("div.stack",
		h("section.panel.flush.wide", { tabindex: "0", "aria-label": "Facts" }, h("table.list.compare",
			h("caption.away", "Facts of both runs"),
			h("thead", h("tr", h("td"), [a, b].map((view, at) => h("th", { scope: "col" }, `${"AB"[at]} `, h("a", { href: `#/runs/${enc(view.run_id)}`, title: view.run_id, text: shortId(view.run_id) }))), h("td.mark-cell"))),
			h("tbody",
				row("Status", (view) => chip(view.status), { key: (view) => view.status }),
				row("Recipe", (view) => view.recipe, { key: (view) => view.recipe }),
				row("Version", (view) => view.digest ? `${view.version} (${view.digest})` : "of code", { key: (view) => view.digest }),
				row("Model", (view) => view.model ?? "none", { key: (view) => view.model }),
				row("Started", (view) => time(view.started_at)),
				row("Duration", (view) => duration(took(view)), { num: true }),
				row("Tokens", usage("total_tokens"), { num: true, key: usage("total_tokens") }),
				row("Cost", (view) => cost(view.usage), { num: true, key: (view) => cost(view.usage) })))),
		pair("Inputs", a, b), pair("Output", a, b), a.error || b.error ? pair("Error", a, b) : null, steps(a, b), h("section.panel", h("h2", "Step by step"), shared(a, b).map((id) => opened(id, [a, b], signal))));
}

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function pair(name, a, b) {
	const path = `/${name.toLowerCase()}`, value = (view) => view[path.slice(1)], isSame = a.cuts.sign(value(a), path) === b.cuts.sign(value(b), path);
	const cut = (view) => view.cuts.at(path) && h("p.muted", "Only the beginning is compared here.");
	return h("section.panel", h("h2.row", name, h("span.muted.plain-word", isSame ? "the same" : "differs")),
		isSame ? shown(value(a), name, a.cuts.at(path)) : beside(value(a), value(b), cut(a), cut(b)));
}

/** Both with what the other has not marked, word by word. */
function beside(a, b, underA = null, underB = null) {
	const texts = [a, b].map((value) => (value === null || value === undefined ? "" : pretty(value)));
	const marked = wordDiff(...texts).map((pieces, at) => texts[at] ? h("div.code", h("pre", { tabindex: "0" }, pieces.map(([text, isOwn]) => (isOwn ? h("mark", h("span.away", "differs: "), text) : text)))) : h("p.muted", "None."));
	return h("div.two", h("div", h("h3", "A"), marked[0], underA), h("div", h("h3", "B"), marked[1], underB));
}

const shown = (value, name, cut) => (value === null || value === undefined ? h("p.muted", "None.") : code(value, name, cut));

/** The steps that both have begun. */
const shared = (a, b) => [...new Set(a.steps.map(({ id }) => id))].filter((id) => b.steps.some((step) => step.id === id));

/** What a step was asked and gave in both runs; loaded when it is opened. */
function opened(id, views, signal) {
	const box = h("div.stack");
	const load = async () => {
		fill(box, loading("both"));
		try {
			const details = await Promise.all(views.map(async ({ run_id: run }) => {
				const detail = await get(`/runs/${enc(run)}/steps?address=${enc(id)}&cut=${CUT}`, { signal }).catch((error) => {
					if (error.status !== 404) throw error; // it was skipped before it began
					return { messages: [], step: { output: null } };
				});
				return { ...detail, cuts: new Cuts(detail.cut) };
			}));
			const under = details.map(({ cuts }) => cuts.parts.length > 0 && h("p.muted", "Only the beginning is compared here."));
			const part = (name, of) => {
				const texts = details.map(of), isSame = texts[0] === texts[1] && !under.some(Boolean);
				return [h("h3.row", name, h("span.muted.plain-word", isSame ? "the same" : "differs")), isSame ? (texts[0] ? code(texts[0], `${name} of ${id}`) : h("p.muted", "None.")) : beside(...texts, ...under)];
			};
			fill(box, part("Prompt", prompt), part("Output", ({ step: { output } }) => (output === null || output === undefined ? "" : pretty(output))));
		} catch (error) {
			if (error.name !== "AbortError") fill(box, problem(error));
		}
	};
	const el = h("details", h("summary", h("code", id)), box);
	el.addEventListener("toggle", load, { once: true });
	return el;
}

/** What was sent to the model first, as one text; empty: no model was asked. */
function prompt({ messages }) {
	const end = messages.findIndex(({ role, metrics }) => role === "assistant" && metrics);
	return messages.slice(0, end < 0 ? messages.length : end).map(({ role, content }) => `${role}\n${content ?? ""}`).join("\n\n");
}

function steps(a, b) {
	const ids = [...new Set([...a.steps, ...b.steps].map((step) => step.id))];
	const of = (view, id) => view.steps.findLast((step) => step.id === id);
	const output = (view, step) => view.cuts.sign(step.output, `/steps/${view.steps.indexOf(step)}/output`);
	const cell = (view, step) => step ? h("td", h("a.chip-link", { href: `#/runs/${enc(view.run_id)}?step=${enc(step.id)}`, "aria-label": `Step ${step.id}: ${step.status}` }, chip(step.is_waiting ? "waiting" : step.status)), " ", h("span.muted.tabular", facts(step))) : h("td.muted", "not there");
	const facts = ({ facts: { duration_ms: took, usage }, status }) => (status === "skipped" ? "" : [took === undefined ? null : duration(took), usage?.total_tokens ? `${count(usage.total_tokens)} tok` : null, usage?.total_tokens ? cost(usage).replace("unknown", "cost unknown") : null].filter(Boolean).join(" · "));
	return h("section.panel.flush.wide", { tabindex: "0", "aria-label": "Steps" }, h("h2", "Steps"), h("table.list.compare",
		h("thead", h("tr", h("th", { scope: "col", text: "Step" }), h("th", { scope: "col", text: "A" }), h("th", { scope: "col", text: "B" }), h("th", { scope: "col", class: "mark-cell", text: "Output" }))),
		h("tbody", ids.map((id) => {
			const [left, right] = [of(a, id), of(b, id)];
			const differs = !left || !right || left.status !== right.status || output(a, left) !== output(b, right);
			return h("tr", { class: differs ? "differs" : null }, h("th", { scope: "row" }, h("code", id)), cell(a, left), cell(b, right), h("td.mark-cell", differs ? "differs" : "same"));
		}))));
}

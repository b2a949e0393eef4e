// What one step did: prompt, response, tool calls, output, attempts, cost.

import { action, callout, chip, cost, count, duration, fill, h, loading, plain, plural, shape, time, tag } from "./dom.js";
import { isAhead, itemOf } from "./fold.js";
import { ItemTable } from "./items.js";
import { code, said, tail } from "./text.js";

const TABS = [["items", "Items"], ["prompt", "Prompt"], ["response", "Response"], ["tools", "Tool calls"], ["output", "Output"], ["attempts", "Attempts"], ["cost", "Cost"]];
const MODEL_KINDS = new Set(["goal", "analyze"]);

const none = (text) => h("p.empty.muted", text);

// A turn of an example stands in the prompt and was never said.
const isExample = (message) => message.name === "example";

export class Drawer {
	/**
	 * `leave(tab)`: another tab is wanted; `leave(null)`: it shall close. `retry(id)`: from this step on.
	 * `marks`: what people say of its output. `path`: of the run in the API; `href(id)`: the address of a step in the page.
	 */
	constructor({ leave, retry, marks, path, href, signal }) {
		Object.assign(this, { leave, marks, path, href, signal });
		this.again = action("Retry from here", () => retry(this.id), { needs: "run", title: "This step and those after it run again" });
		this.title = h("h2", { id: "drawer-title", tabindex: "-1" });
		this.state = h("span");
		this.loop = h("a.quiet-link", { hidden: true, text: "All items" });
		this.body = h("div.drawer-body", { id: "drawer-body", role: "tabpanel", tabindex: "0" });
		this.tabs = TABS.map(([name, label]) => h("button", { role: "tab", id: `tab-${name}`, "aria-controls": "drawer-body", text: label, onclick: () => leave(name) }));
		this.el = h("div.drawer", { role: "dialog", "aria-labelledby": "drawer-title", hidden: true, onkeydown: (event) => this.key(event) },
			h("div.drawer-head", this.title, this.state, this.loop, this.again,
				h("button", { class: "quiet close", "aria-label": "Close the step", title: "Close (Esc)", onclick: () => leave(null) }, shape("bad"))),
			h("div.tabs", { role: "tablist", "aria-label": "About the step" }, this.tabs), marks.el, this.body);
	}

	key(event) {
		if (event.key === "Escape") {
			event.stopPropagation();
			this.leave(null);
			return;
		}
		const offered = this.tabs.filter((each) => !each.hidden), at = offered.indexOf(event.target);
		if (at < 0) return;
		const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: offered.length - 1 }[event.key];
		if (to === undefined) return;
		event.preventDefault();
		const next = offered[(to + offered.length) % offered.length];
		this.leave(TABS[this.tabs.indexOf(next)][0]);
		next.focus();
	}

	open(step, tab, isNew) {
		this.el.hidden = !step;
		document.body.classList.toggle("has-drawer", Boolean(step));
		this.wanted = TABS.some(([name]) => name === tab) ? tab : null;
		if (!isNew || !step) return;
		this.signature = this.items = null;
		this.title.textContent = this.id = step;
		const item = itemOf(step);
		this.loop.hidden = true;
		if (item) this.loop.setAttribute("href", `${this.href(item.step)}&tab=items`);
		setTimeout(() => this.title.focus({ preventScroll: true }));
	}

	/** `detail`: what the server has of this step, or null as long as it has not come. */
	show(step, view, detail, kind, isOver, totals) {
		this.again.hidden = !isOver || step.status === "pending";
		this.loop.hidden = !step.isItem;
		const isMixed = step.status === "completed" && totals?.failed > 0;
		const status = isMixed ? "partial" : isOver && step.status === "running" ? "interrupted" : step.status;
		this.marks.show(view, step.id, isOver && step.status === "completed");
		const tab = this.tabFor(step, status, kind, totals);
		TABS.forEach(([name], at) => {
			const isOn = name === tab;
			this.tabs[at].hidden = totals ? !["items", "output", "attempts", "cost"].includes(name) : name === "items";
			if (name === "attempts") this.tabs[at].textContent = status === "failed" ? "Error" : "Attempts";
			this.tabs[at].setAttribute("aria-selected", String(isOn));
			this.tabs[at].tabIndex = isOn ? 0 : -1;
		});
		this.body.setAttribute("aria-labelledby", `tab-${tab}`);
		const rows = view.steps.map((each, at) => ({ ...each, cut: view.cuts.at(`/steps/${at}/output`) })).filter((each) => each.id === step.id || (!step.isItem && each.id.startsWith(`${step.id}[`) && itemOf(each.id)?.step === step.id));
		const facts = {
			id: step.id, status, step, tab, detail,
			messages: (detail?.messages ?? []).map((each, at) => ({ ...each, cut: (part) => detail.cuts.at(`/messages/${at}/${part}`) })),
			rows: rows.length || !detail ? rows : [{ ...detail.step, cut: detail.cuts.at("/step/output") }],
			notes: view.notes.filter((each) => each.step_id === step.id),
		};
		const signature = JSON.stringify([tab, status, detail, facts.rows, facts.notes, step.spans, step.retries, step.serverWait, [...step.tools.values()], step.liveTools, step.hasGap, Boolean(step.live)]);
		if (this.signature !== signature) {
			this.signature = signature;
			fill(this.state, chip(status));
			this.live = null;
			const top = this.shownTab === `${step.id} ${tab}` ? this.body.scrollTop : 0;
			fill(this.body, this[`tab_${tab}`](facts));
			this.body.scrollTop = top;
			this.shownTab = `${step.id} ${tab}`;
		}
		if (tab === "items") this.items.show(step.items, totals);
		if (this.live) this.stream(step.live);
	}

	/** The tab that was asked for, else the one that tells the most of this step. */
	tabFor(step, status, kind, totals) {
		if (this.wanted && (totals || this.wanted !== "items")) return this.wanted;
		if (totals) return "items";
		if (status === "failed") return "attempts";
		if (!kind || MODEL_KINDS.has(kind) || step.live) return "response";
		return kind === "tool" ? "tools" : "output";
	}

	tab_items() {
		this.items ??= new ItemTable(this.path, this.id, this.signal, this.href);
		return this.items.el;
	}

	/** Text that comes; the reader stays at the end if they were there. */
	stream(text) {
		const isAtEnd = this.body.scrollHeight - this.body.scrollTop - this.body.clientHeight < 48;
		const shown = plain(tail(text));
		if (this.live.data !== shown) this.live.data = shown;
		if (isAtEnd) this.body.scrollTop = this.body.scrollHeight;
	}

	tab_prompt({ messages, detail }) {
		if (!detail) return loading("the prompt");
		const sent = messages.filter((each) => isExample(each) || (each.role !== "assistant" && each.role !== "tool"));
		return sent.length ? [sections(detail.prompts), sent.map(message)] : none("This step has asked no model.");
	}

	tab_response({ messages, step, detail }) {
		const parts = messages.filter((each) => each.role === "assistant" && !isExample(each)).map(message);
		// What the server has may be ahead of the events, of which all come again when the page is opened.
		const mayMiss = step.hasGap && step.status === "running" && !["completed", "failed"].includes(detail?.step.status);
		if (step.live || step.liveTools.length || mayMiss) {
			this.live = document.createTextNode(plain(tail(step.live)));
			parts.push(writing("said", this.live, step.hasGap, step.liveTools.filter(Boolean).map((call) => call.name)));
		}
		if (isAhead(step.serverWait)) parts.push(h("p.muted", `It waits for the server ${step.serverWait.server} until `, time(step.serverWait.until), "."));
		return parts.length ? parts : none(step.status === "running" ? "Nothing has come yet." : "No model answered in this step.");
	}

	tab_tools({ messages, step }) {
		const answers = new Map(messages.filter((each) => each.role === "tool").map((each) => [each.tool_call_id, each]));
		const calls = new Map([...step.tools.values()].map((call) => [call.id, call]));
		for (const message of messages) {
			for (const call of message.tool_calls ?? []) {
				if (call.function && !calls.has(call.id)) calls.set(call.id, { id: call.id, name: call.function.name, arguments: call.function.arguments, isOver: answers.has(call.id) });
			}
		}
		if (!calls.size) return none("This step has called no tool.");
		return [...calls.values()].map((call) => h("article.said.tool",
			h("header", h("code.strong", call.name),
				chip(call.error ? "failed" : call.isOver ? "completed" : step.status === "waiting" ? "waiting" : step.status === "running" ? "running" : "interrupted"),
				call.duration === undefined ? null : h("span.muted.tabular", duration(call.duration))),
			h("h3", "Arguments"), code(call.arguments ?? "{}", "Arguments"),
			call.error ? [h("h3", "Error"), h("p.bad-text", call.error.message)] : null,
			answers.has(call.id) ? [h("h3", "Result"), code(answers.get(call.id).content ?? "", "Result", answers.get(call.id).cut("content"))] : null));
	}

	tab_output({ rows, step }) {
		const parts = rows.filter((row) => row.output !== null).map((row) => [rows.length > 1 ? h("h3", row.id) : null, code(row.output, `Output of ${row.id}`, row.cut)]);
		const why = step.reason && step.status === "skipped" ? h("p", "Skipped: ", step.reason) : null;
		return [why, parts.length ? parts : none(step.status === "running" ? "The step is running." : "The step gave no output.")];
	}

	tab_attempts({ rows, step, notes }) {
		const failed = step.error && step.status !== "waiting" ? callout("bad", null, step.error.message, step.error.code) : null;
		const spans = step.spans.map((span, at) => h("li", `${at + 1}. `, chip(span.end ? span.status : step.status), " ", time(span.start), " ", h("span.tabular", span.end ? duration(new Date(span.end) - new Date(span.start)) : "")));
		const retries = step.retries.map((each) => h("li", `Attempt ${each.attempt} of ${each.what} failed: ${each.error.message} `, h("span.muted", `again after ${each.delay_s.toFixed(1)} s`)));
		const list = (title, each) => (each.length ? [h("h3", title), h("ul.plain.lines", each)] : null);
		return [failed,
			step.reason && !failed ? h("p", step.reason) : null,
			step.cachedFrom ? h("p", `Its output was taken from run ${step.cachedFrom}.`) : null,
			step.pinnedFrom ? h("p", `Its output is pinned: ${step.pinnedFrom}.`) : null,
			spans.length ? list("Times it was run", spans) : none(step.status === "pending" ? "It has not begun." : "It was passed over."),
			step.attempts > 1 ? h("p", `One of its calls needed ${step.attempts} attempts.`) : null,
			list("Retries seen", retries),
			list("Between", notes.map((each) => h("li", `${each.kind}: ${each.state}${each.facts.by ? ` by ${each.facts.by}` : ""}`))),
			rows.length > 1 ? list("Each", rows.map((row) => h("li", h("code", row.id), " ", chip(row.is_waiting ? "waiting" : row.status)))) : null];
	}

	tab_cost({ messages, step, rows }) {
		const usage = step.usage ?? rows[0]?.facts.usage;
		if (!usage) return none("Usage is counted when the step ends.");
		const line = (name, value) => h("tr", h("th", { scope: "row", text: name }), h("td.num", value));
		const answers = messages.filter((each) => each.role === "assistant" && each.metrics);
		const isJudged = answers.some(({ metrics }) => metrics.confidence !== undefined);
		const sure = ({ confidence, least_sure_of: at }) => (confidence === undefined ? "–" : `${confidence.toFixed(2)} of ${at}`);
		return [h("table.list.small", h("tbody",
			line("Cost", cost(usage)), line("Tokens", count(usage.total_tokens)), line("in", count(usage.input_tokens)), line("of these from the cache", count(usage.cached_tokens)), line("out", count(usage.output_tokens)),
			line("Model calls", count(step.modelCalls)), line("Tool calls", count(step.toolCalls)), line("Duration", duration(step.duration)))),
			usage.cost_usd === null && usage.total_tokens > 0 ? h("p.muted", "No price is known for this model, so the cost is unknown.") : null,
			answers.length ? [h("h3", plural(answers.length, "model call")), h("table.list.small",
				h("thead", h("tr", ["Model", "In", "Out", "First token", "Time", ...(isJudged ? ["Least sure"] : [])].map((text, at) => h("th", { scope: "col", class: at ? "num" : null, text })))),
				h("tbody", answers.map(({ metrics }) => h("tr", h("td.clip", { title: metrics.model_name, text: metrics.model_name ?? "–" }), [count(metrics.input_tokens), count(metrics.output_tokens), duration(metrics.first_token_latency_ms), duration(metrics.duration_ms), ...(isJudged ? [sure(metrics)] : [])].map((text) => h("td.num", { text }))))))] : null];
	}
}

/** An answer while it comes. */
export const writing = (look, text, hasGap, tools) => h(`article.${look}.assistant.live`,
	h("header", h("span.role", "assistant"), tag("run", "writing")),
	hasGap && h("p.muted", "What was written before this page listened comes with the whole answer."),
	h("pre.text", text),
	tools.map((name) => h("p", "asks for ", h("code", name))));

const SECTIONS = { system: "System", context: "Context", examples: "Examples", goal: "Goal", step_outputs: "Outputs of steps", schema: "Schema", tools: "Tools", history: "History" };

/** What the tokens of all prompts were spent on, the largest part first. */
function sections(prompts) {
	const sums = new Map();
	for (const { sections } of prompts) for (const [name, tokens] of Object.entries(sections)) sums.set(name, (sums.get(name) ?? 0) + tokens);
	if (!sums.size) return null;
	const all = [...sums.values()].reduce((sum, tokens) => sum + tokens, 0), ranked = [...sums].sort((a, b) => b[1] - a[1]);
	const calls = prompts.length > 1 ? ` in ${plural(prompts.length, "call")}` : "";
	return h("section", { "aria-label": "Sections of the prompt" },
		h("h3", `${plural(all, "token")} sent${calls}, by section`),
		h("table.list.small.sections",
			h("thead.away", h("tr", ["Section", "Tokens", "Part"].map((text) => h("th", { scope: "col", text })))),
			h("tbody", ranked.map(([name, tokens]) => h("tr",
				h("th", { scope: "row", text: SECTIONS[name] ?? name }),
				h("td.num", count(tokens)),
				h("td.part", h("meter", { min: "0", max: String(all || 1), value: String(tokens), "aria-label": `${SECTIONS[name] ?? name}: ${share(tokens, all)} of the prompt` }), h("span.muted.tabular", share(tokens, all))))))),
		cacheOf(prompts));
}

/** What the server read from its cache of prompts, and where prompts depart from earlier ones. */
function cacheOf(prompts) {
	const known = prompts.filter(({ cache_read_tokens: read, prefix }) => read || Object.keys(prefix).length);
	if (!known.length) return null;
	const asked = prompts.reduce((sum, each) => sum + each.input_tokens, 0), read = prompts.reduce((sum, each) => sum + each.cache_read_tokens, 0);
	const broken = known.filter(({ prefix }) => prefix.differs);
	return [
		h("p.muted", `${count(read)} of ${plural(asked, "input token")} were read from the server's cache (${share(read, asked)}).`),
		...broken.map(({ prefix: { differs, after, lost_tokens: lost } }) =>
			h("p.muted", `Differs from ${after ?? "the call before"} in ${differs}${lost ? `; ${count(lost)} equal tokens behind that are paid again` : ""}.`))];
}

const share = (tokens, all) => `${Math.round((100 * tokens) / (all || 1))} %`;

/** One message, as text. */
function message({ role, name, content, tool_calls: calls, cut }) {
	return h("article", { class: `said ${role}` },
		h("header", h("span.role", role), name && h("code", name)),
		content ? said(content, `Message of ${role}`, cut("content")) : null,
		(calls ?? []).map((call) => h("div", h("p", "asks for ", h("code.strong", call.function?.name)), code(call.function?.arguments ?? "", "Arguments", cut("tool_calls")))));
}

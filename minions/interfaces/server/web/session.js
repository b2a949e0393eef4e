// Sessions: the list, and one conversation with its turns, regenerations and forks.

import { begin, enc, follow, get, post } from "./api.js";
import { Rows, action, callout, changed, chip, cost, count, duration, empty, fill, h, lacks, loading, needs, note, plural, shortId, time } from "./dom.js";
import { LiveList, ProjectFilter, cell, main, projectHint, runsOf, state } from "./list.js";
import { decisionCard } from "./approvals.js";
import { writing } from "./drawer.js";
import { code, said, tail } from "./text.js";
import { go } from "./address.js";

export async function showSessions({ root, query, signal }) {
	const projects = new ProjectFilter(signal);
	const list = new LiveList({
		signal, name: "sessions", filters: [projects.filter], after: () => projects.take(list.items ?? []), heads: ["Session", "Recipe", "Last run", "Updated", "Forked from"],
		key: (each) => each.id,
		row: (each) => h("tr",
			main("Session", link(each.id, each.name), projectHint(each)),
			cell("Recipe", each.recipe ?? h("span.muted", "several or none")),
			state("Last run", each.last_run_id ? h("a.chip-link", { href: `#/runs/${enc(each.last_run_id)}` }, chip(each.status)) : h("span.muted", "none yet")),
			cell("Updated", time(each.updated_at)),
			cell("Forked from", each.parent_session_id ? [link(each.parent_session_id), ` at ${each.forked_at_sequence}`] : h("span.muted", "–"))),
		none: empty("No sessions yet", h("p", "Every run belongs to a session; a conversation is a session with messages."), h("p", h("a.button.primary", { href: "#/new" }, "Start one")), h("p.muted", "or in a terminal: ", h("code", "minions chat"))),
	});
	fill(root, h("div.head", h("h1", "Sessions"), h("div.row.tools", list.tools)), list.el, list.foot);
	await list.begin(query);
	return (next) => list.take(next);
}

const link = (id, name) => h("a", { href: `#/sessions/${enc(id)}`, title: id }, name ?? shortId(id));

export async function showSession({ root, path, query, signal }) {
	const session = await get(`/sessions/${enc(path[1])}`, { signal });
	const conversation = new Conversation(root, session, signal);
	await conversation.open(query);
	return (next) => conversation.point(next);
}

class Conversation {
	constructor(root, session, signal) {
		Object.assign(this, { root, session, signal, steps: [], running: null, live: "", liveTools: [], hasGap: false, saying: null, error: null, named: null });
	}

	get path() {
		return `/sessions/${enc(this.session.id)}`;
	}

	async open(query) {
		const session = this.session;
		this.list = h("div.chat", { role: "log", "aria-label": "Messages" });
		this.rows = new Rows(this.list);
		this.tail = h("div.chat");
		this.end = h("div");
		this.facts = h("dl.facts.side");
		this.tree = h("div", loading("forks"));
		this.waits = h("div.stack");
		this.input = h("textarea", { rows: "3", "aria-label": "Your message", placeholder: "Say something. Ctrl+Enter sends." });
		this.send = needs("run", h("button", { type: "submit", class: "primary", text: "Send" }));
		this.model = h("select", { "aria-label": "Model", hidden: true }, h("option", { value: "", text: "The recipe's model" }));
		if (session.recipe) this.offerModels();
		this.buttons = h("span.row");
		this.form = h("form.say", { onsubmit: (event) => (event.preventDefault(), this.say()) }, this.input, h("div.row.between", this.buttons, h("span.row", this.model, this.send)));
		this.input.addEventListener("keydown", (event) => {
			if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
			event.preventDefault();
			this.say();
		});
		this.title = h("h1.row");
		fill(this.root,
			h("div.head", h("div", this.title, h("p.muted.ids", h("code", session.id))),
				h("div.row.tools", h("a.button", { href: runsOf(session.id), text: "Runs" }), session.recipe ? h("a.button", { href: `#/new?recipe=${enc(session.recipe)}`, text: "New run" }) : null)),
			h("div.split.talk",
				h("div.stack", this.list, this.tail, this.end, this.waits, session.recipe ? this.form : h("p.muted", "This session has no recipe of its own: nothing can be said in it here. ", h("a", { href: runsOf(session.id) }, "Its runs"), " are listed under Runs.")),
				h("aside.stack", { "aria-label": "About the session" }, h("section.panel", h("h2", "Summary"), this.facts), h("section.panel", h("h2", "Forks"), this.tree))));
		await this.load();
		this.end.scrollIntoView({ block: "end" }); // what was said last
		this.point(query);
		this.follow();
	}

	/** Show the message that the address names, if it names one. */
	point(query) {
		const asked = query.get("message");
		this.named = this.steps.some((step) => String(step.sequence) === asked) ? Number(asked) : null;
		this.paint();
		if (this.named === null) {
			if (asked !== null) note(`There is no message ${asked} in this session.`, "bad");
			return;
		}
		const message = this.list.querySelector("[aria-current]");
		message.scrollIntoView({ block: "start" });
		message.focus({ preventScroll: true });
	}

	/** The models that the operator lets a caller choose; without any the choice is not shown. */
	async offerModels() {
		const { models } = await get("/system", { signal: this.signal }).catch(() => ({ models: [] }));
		for (const name of models) this.model.append(h("option", { value: name, text: name }));
		this.model.hidden = !models.length;
	}

	// --- what comes in

	async load() {
		const [session, steps, context] = await Promise.all([
			get(this.path, { signal: this.signal }), this.allSteps(), get(`${this.path}/context`, { signal: this.signal }),
		]);
		this.session = session;
		this.steps = steps;
		this.summary = context.summary;
		const isOpen = ["queued", "running", "interrupted", "needs_decision"].includes(session.status);
		const last = isOpen && (await get(`/runs/${enc(session.last_run_id)}`, { signal: this.signal }));
		this.waiting = last ? last.waiting : [];
		this.running = last && last.status === "running" ? last.run_id : null;
		this.paint();
		this.loadTree();
	}

	async allSteps() {
		const all = [];
		for (;;) {
			const { steps, total } = await get(`${this.path}/steps?limit=1000&start_seq=${all.length + 1}`, { signal: this.signal });
			all.push(...steps);
			if (!steps.length || all.length >= total) return all;
		}
	}

	loadSoon() {
		this.timer ??= setTimeout(async () => {
			this.timer = null;
			try {
				await this.load();
			} catch {
				// the stream tells when the server is there again
			}
		}, 120);
	}

	follow() {
		follow(`${this.path}/events`, {
			signal: this.signal, after: this.session.position ?? 0,
			onError: (error) => note(error.message, "bad"),
			onGap: () => {
				this.hasGap = Boolean(this.running);
				this.live = "";
				this.liveTools = [];
				this.loadSoon();
				this.paintTail();
			},
			onEvent: (event) => this.take(event),
		});
	}

	take(event) {
		if (event.type === "step_delta") {
			if (event.delta.content) this.live += event.delta.content;
			for (const call of event.delta.tool_calls ?? []) if (call.function?.name) this.liveTools[call.index ?? 0] = call.function.name;
			this.running = event.run_id;
			this.paintTailSoon();
			return;
		}
		if (event.type === "run_started") [this.running, this.error] = [event.run_id, null];
		if (event.type === "step_completed" && event.snapshot.role === "assistant") this.clear();
		if (["run_completed", "run_waiting", "run_failed"].includes(event.type)) {
			this.clear();
			this.running = null;
			this.error = event.type === "run_failed" && event.status !== "cancelled" ? event.data?.error : null;
		}
		this.loadSoon();
	}

	/** What was shown as it came is now recorded; it stays until the messages are there. */
	clear() {
		Object.assign(this, { live: "", liveTools: [], hasGap: false });
	}

	async loadTree() {
		try {
			const { sessions } = await get(`/sessions?limit=1000&tree=${enc(this.session.id)}`, { signal: this.signal });
			const known = new Map(sessions.map((each) => [each.id, each]));
			let top = this.session;
			while (top.parent_session_id && known.has(top.parent_session_id)) top = known.get(top.parent_session_id);
			const kids = (id) => sessions.filter((each) => each.parent_session_id === id).sort((a, b) => a.created_at.localeCompare(b.created_at));
			const item = (each) => h("li",
				each.id === this.session.id ? h("span.strong", { "aria-current": "page" }, each.name ?? shortId(each.id)) : link(each.id, each.name),
				each.forked_at_sequence ? h("span.muted", ` at ${each.forked_at_sequence}`) : null,
				kids(each.id).length ? h("ul", kids(each.id).map(item)) : null);
			const only = !this.session.parent_session_id && !kids(this.session.id).length;
			if (!changed(this, "tree", [only, sessions.map((each) => [each.id, each.parent_session_id])])) return;
			fill(this.tree, only ? h("p.muted", "None. “Fork here” at a message begins one.") : h("ul.tree", item(top)));
		} catch {
			// it is only beside the conversation
		}
	}

	// --- what is shown

	paint() {
		const session = this.session;
		const status = this.running ? "running" : session.status;
		if (changed(this, "facts", [session, status, this.summary])) this.paintFacts(status);
		const isAtEnd = this.isAtEnd();
		const isBusy = Boolean(this.running), last = this.steps.length;
		this.rows.show(this.steps, (step) => step.sequence, (step) => JSON.stringify([step, isBusy, step.sequence === last, step.sequence === this.named]), (step) => this.message(step, isBusy, last));
		this.paintTail();
		if (changed(this, "waits", this.waiting)) fill(this.waits, this.waiting.map((each) => decisionCard(each, { onDecided: () => this.load() })));
		this.paintForm();
		if (isAtEnd || !this.hasShown) this.toEnd();
		this.hasShown = true;
	}

	paintFacts(status) {
		const session = this.session;
		fill(this.title, session.name ?? session.recipe ?? "Session", status ? chip(status) : null);
		const summary = this.summary ?? {}, usage = { total_tokens: 0, cost_usd: 0 };
		let isKnown = true;
		for (const { role, metrics } of this.steps) {
			if (role !== "assistant") continue;
			usage.total_tokens += metrics?.total_tokens ?? 0;
			if (metrics?.cost_usd !== undefined) usage.cost_usd += metrics.cost_usd;
			else isKnown = false;
		}
		const line = (name, value) => h("div", h("dt", name), h("dd", value));
		fill(this.facts,
			line("Recipe", session.recipe ?? "several or none"),
			line("Messages", `${count(summary.total_steps)} (${count(summary.user_steps)} by you, ${count(summary.assistant_steps)} by the model, ${count(summary.tool_steps)} by tools)`),
			line("Tool calls", count(summary.total_tool_calls)),
			line("Tokens", count(usage.total_tokens)),
			line("Cost", this.steps.some((step) => step.role === "assistant") ? cost(isKnown ? usage : { ...usage, cost_usd: null }) : "–"),
			line("Created", time(session.created_at)), line("Updated", time(session.updated_at)),
			session.last_run_id ? line("Last run", h("a", { href: `#/runs/${enc(session.last_run_id)}`, title: session.last_run_id, text: shortId(session.last_run_id) })) : null,
			session.parent_session_id ? line("Forked from", [link(session.parent_session_id), ` at message ${session.forked_at_sequence}`]) : null);
	}

	/** Whether the reader sees where new messages come. */
	isAtEnd() {
		return this.end.getBoundingClientRect().top < window.innerHeight + 80;
	}

	toEnd() {
		this.form.scrollIntoView({ block: "end" });
	}

	paintForm() {
		const isBusy = Boolean(this.running), last = this.steps.at(-1);
		this.send.disabled = isBusy || lacks("run") !== null;
		const hangs = last && !isBusy && !this.waiting?.length && (last.role !== "assistant" || last.tool_calls?.length || ["interrupted", "cancelled", "limit_reached"].includes(this.session.status));
		if (!changed(this, "form", [this.running, hangs])) return;
		fill(this.buttons,
			isBusy ? action("Stop", () => post(`/runs/${enc(this.running)}/cancel`), { needs: "run", class: "stop" }) : null,
			hangs ? action("Resume", () => this.turn(`${this.path}/resume`, {}), { needs: "run" }) : null);
	}

	paintTailSoon() {
		this.frame ??= requestAnimationFrame(() => {
			this.frame = null;
			this.paintTail();
			this.paintForm();
		});
	}

	paintTail() {
		const isAtEnd = this.isAtEnd();
		const kind = this.error ? `error ${this.error.message}` : this.running ? `live ${this.hasGap} ${this.liveTools.join()}` : "";
		if (this.tailKind !== kind) {
			this.tailKind = kind;
			this.text = document.createTextNode("");
			if (this.error) fill(this.tail, callout("bad", "The turn failed", this.error.message, this.error.code));
			else if (this.running) fill(this.tail, writing("bubble", this.text, this.hasGap, this.liveTools.filter(Boolean)));
			else if (!this.steps.length) fill(this.tail, empty("Nothing was said yet", h("p.muted", this.session.recipe ? "Write the first message below." : "Runs of this session keep no conversation.")));
			else fill(this.tail);
		}
		const text = tail(this.live);
		if (this.text.data !== text) this.text.data = text;
		if (isAtEnd && this.live) this.toEnd();
	}

	message(step, isBusy, last) {
		const metrics = step.metrics ?? {}, n = step.sequence;
		const known = [
			step.is_truncated ? "cut off at its token limit" : null, metrics.model_name, metrics.total_tokens === undefined ? null : plural(metrics.total_tokens, "token"),
			step.role === "assistant" && metrics.total_tokens ? cost({ total_tokens: metrics.total_tokens, cost_usd: metrics.cost_usd }).replace("unknown", "cost unknown") : null,
			metrics.duration_ms === undefined ? metrics.tool_exec_time_ms === undefined ? null : duration(metrics.tool_exec_time_ms) : duration(metrics.duration_ms),
		].filter(Boolean).join(" · ");
		const who = { user: "you", assistant: "assistant", tool: "tool", system: "system" }[step.role] ?? step.role;
		const content = step.content ?? "";
		const body = step.role === "tool" ? code(content, `Message ${n}`) : content ? said(content, `Message ${n}`) : null;
		return h("article", { class: `bubble ${step.role}`, "aria-label": `Message ${n} of ${who}`, "aria-current": n === this.named ? "true" : null, tabindex: n === this.named ? "-1" : null },
			h("header", h("span.role", who), step.name ? h("code", step.name) : null, h("a.quiet-link.tabular", { href: `#${this.path}?message=${n}`, "aria-label": `Link to message ${n}` }, `${n}`), step.created_at ? h("span.muted", time(step.created_at)) : null),
			step.role === "tool" ? h("details", h("summary", "Result"), body) : body,
			(step.tool_calls ?? []).map((call) => h("details.call", h("summary", "asks for ", h("code.strong", call.function.name)), code(call.function.arguments, "Arguments"))),
			h("footer", h("span.muted.tabular", known),
				h("span.row.acts",
					step.role === "assistant" && !isBusy && this.session.recipe ? action("Regenerate", () => this.regenerate(n, last), { needs: "run", class: "quiet", "aria-label": `Regenerate from message ${n}` }) : null,
					action("Fork here", () => this.fork(n), { needs: "run", class: "quiet", "aria-label": `Fork here, at message ${n}` }),
					step.run_id ? h("a.quiet-link", { href: `#/runs/${enc(step.run_id)}`, text: "Run", "aria-label": `Run of message ${n}` }) : null)));
	}

	// --- what is done

	async say() {
		const content = this.input.value;
		if (!content.trim() || this.send.disabled) return;
		this.send.disabled = true;
		try {
			await this.turn(`${this.path}/messages`, this.model.value ? { content, model: this.model.value } : { content });
			this.input.value = "";
		} catch (error) {
			note(error.message, "bad");
		} finally {
			this.paintForm();
			this.send.disabled = Boolean(this.running) || lacks("run") !== null;
			this.input.focus();
		}
	}

	/** The events come by the session's own stream. */
	async turn(path, body) {
		this.error = null;
		await begin(path, body);
		this.loadSoon();
	}

	async regenerate(from, last) {
		const lost = last - from + 1;
		if (lost > 1 && !confirm(`Regenerate from here? ${plural(lost, "message")} from ${from} on are replaced by what comes now. To keep them, fork first.`)) return;
		await this.turn(`${this.path}/retry`, { sequence: from });
	}

	async fork(sequence) {
		const made = await post(`${this.path}/fork`, { sequence });
		note(`Forked at message ${sequence}.`, "good");
		go(`/sessions/${enc(made.new_session_id)}`);
	}
}

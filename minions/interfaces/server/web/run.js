// One run: picture with live states, waterfall, what it waits for, and what each step did.

import { download, enc, follow, get, now, onChange, post } from "./api.js";
import { Rows, action, between, callout, changed, chip, copyButton, cost, count, duration, fill, h, loading, note, plain, plural, shape, short, statusOf, tag, time, timeWords } from "./dom.js";
import { decidedByOther, decisionCard, unsentText } from "./approvals.js";
import { RunFold, byPlanSteps, isAhead, outermost, timeline } from "./fold.js";
import { Graph } from "./graph.js";
import { Marks } from "./marks.js";
import { planDiff } from "./plandiff.js";
import { Capture } from "./capture.js";
import { Rollback } from "./rollback.js";
import { RunSearch } from "./search.js";
import { CUT, Cuts, code } from "./text.js";
import { TimeWindow } from "./timewindow.js";
import { Zoom } from "./zoom.js";
import { go } from "./address.js";
import { totalsText } from "./items.js";
import { Drawer } from "./drawer.js";

export async function showRun({ root, path, query, signal }) {
	const view = await loadRun(path[1], signal);
	const page = new RunPage(root, view, signal);
	await page.open(query);
	return (next) => page.pick(next);
}

/** The run with long values cut and without messages. */
export async function loadRun(id, signal) {
	const path = `/runs/${enc(id)}`;
	const view = await get(`${path}?parts=steps&cut=${CUT}`, { signal });
	view.cuts = new Cuts(view.cut, async (at) => (await get(`${path}/value?at=${enc(at)}`, { signal })).value);
	return view;
}

const CUT_OFF = ["interrupted", "cancelled", "limit_reached"];
const MOST_INNER = 100;
const SOON_MS = 200, LATER_MS = 1000;
const isOn = (status) => status === "running" || status === "cancelling";

/** A run of a task by its first words; null of any other recipe. */
function taskOf({ recipe, inputs }) {
	const task = recipe === "StepExecutor" && inputs?.requirements;
	return typeof task === "string" && task.trim() ? plain(task.trim().split("\n")[0].slice(0, 80)) : null;
}

class RunPage {
	constructor(root, view, signal) {
		this.root = root;
		this.view = view;
		this.signal = signal;
		this.fold = new RunFold();
		this.picked = null;
		this.graph = null;
		this.ids = view.steps.map((step) => step.id).filter((each) => outermost(each) === each);
		this.detail = null;
		this.cards = new Map();
		this.decided = new Map();
		this.time = new TimeWindow(() => this.middleOfPicked());
		this.sent = new Set();
		this.drawer = new Drawer({
			leave: (tab) => this.leave(tab), retry: (step) => this.again("retry", { from_step: step }),
			marks: new Marks(this.path, () => this.refresh()), path: this.path, href: (step) => `#${this.addressOf(step)}`, signal,
		});
	}

	get path() {
		return `/runs/${enc(this.view.run_id)}`;
	}

	/** The address of a step in the page, or of the run; with the part of the timeline that is shown. */
	addressOf(step) {
		const parts = [step && `step=${enc(step)}`, this.time.written].filter(Boolean);
		return `${this.path}${parts.length ? "?" : ""}${parts.join("&")}`;
	}

	async open(query) {
		this.build();
		const graph = await Graph.load(`${this.path}/graph`, this.signal, (id, from) => this.go(id, from));
		if (this.signal.aborted) return;
		this.graph = graph;
		if (graph) this.ids = graph.ids;
		this.split.classList.toggle("run", !graph?.isWide);
		fill(this.picture, graph ? graph.el : h("p.muted.pad", "There is no picture of its recipe."));
		if (graph) this.showZoom(graph);
		this.paint();
		this.pick(query);
		this.follow();
		onChange("runs", this.signal, () => this.lookAgain());
		const tick = setInterval(() => this.tick(), 250);
		this.signal.addEventListener("abort", () => clearInterval(tick));
	}

	showZoom(graph) {
		const zoom = new Zoom(this.picture, graph.el, graph.width, graph.height);
		this.pictureHead.append(zoom.tools);
		zoom.begin();
	}

	build() {
		const view = this.view;
		this.statusBox = h("span.status-box", { role: "status" });
		this.facts = h("dl.facts");
		this.search = new RunSearch(this.path, (step) => `#${this.addressOf(step)}`, this.signal);
		this.buttons = h("span.row");
		this.waits = h("div.stack");
		this.result = h("div.stack");
		this.marks = new Marks(this.path, () => this.refresh());
		this.rollback = new Rollback(this.path, () => this.refresh());
		this.capture = new Capture(this.path);
		this.plans = h("div.stack");
		this.pictureHead = h("div.panel-head", h("h2", { id: "picture-title", text: "Steps" }));
		this.picture = h("div.picture", { role: "region", "aria-label": "Picture of the steps", "aria-keyshortcuts": "+ - 0 1", tabindex: "0" }, loading("the picture"));
		this.fall = h("div.fall-rows", { role: "list", "aria-keyshortcuts": "+ - 0 ArrowLeft ArrowRight" });
		this.left = h("p.muted.pad", { hidden: true });
		this.showsInner = false;
		this.inner = h("button.quiet.pad", { hidden: true, onclick: () => {
			this.showsInner = !this.showsInner;
			this.paint();
		} });
		this.scale = h("div.scale", { "aria-hidden": "true" });
		this.rows = new Rows(this.fall);
		fill(this.root,
			h("div.head",
				h("div", h("h1.row", taskOf(view) ?? view.recipe, this.statusBox), h("p.muted.ids", h("code", view.run_id), copyButton(view.run_id, "run id"), view.digest ? h("span", ` version ${view.version} (${view.digest})`) : null)),
				h("div.row.tools", this.search.input, this.buttons, this.files())),
			this.facts, this.search.el, this.waits, this.plans,
			this.split = h("div.split.run",
				h("section.panel.flush", { "aria-labelledby": "picture-title" }, this.pictureHead, this.picture),
				h("div.stack",
					h("section.panel.flush", { "aria-labelledby": "fall-title", onkeydown: (event) => this.time.key(event) }, h("div.panel-head", h("h2", { id: "fall-title", text: "Waterfall" }), this.time.tools), this.scale, this.fall, this.left, this.inner),
					this.rollback.el, this.result, this.capture.el)),
			this.drawer.el);
	}

	/** The run as files. */
	files() {
		const id = this.view.run_id;
		const file = (label, path, name) => action(label, () => download(`${this.path}/${path}`, name), { class: "quiet" });
		return h("details.menu", h("summary.button", "Download"), h("div.panel.stack",
			file("Page to send (HTML)", "export.html", `${id}.html`), file("Raw journal (JSONL)", "journal", `${id}.jsonl`)));
	}

	// --- what comes in

	follow() {
		follow(`${this.path}/events`, {
			signal: this.signal,
			isOver: () => this.fold.isOver,
			onGap: () => (this.fold.gap(), this.soon()),
			onError: (error) => note(error.message, "bad"),
			onEvent: (event) => {
				this.fold.apply(event);
				this.soon();
				if (/run_|waiting|plan_/.test(event.type)) this.refreshSoon();
				else if (/step_finished|step_completed/.test(event.type)) this.refreshSoon(event.index === undefined ? SOON_MS : LATER_MS);
			},
		});
	}

	/** At most once for each frame that is drawn. */
	soon() {
		this.frame ??= requestAnimationFrame(() => {
			this.frame = null;
			if (!this.signal.aborted) this.paint();
		});
	}

	/** What the events do not tell: outputs, prompts. Many events ask for it once, and a slow answer less often. */
	refreshSoon(wait = SOON_MS) {
		this.timer ??= setTimeout(async () => {
			this.timer = null;
			await this.refresh();
		}, Math.max(wait, 4 * (this.took ?? 0)));
	}

	async refresh() {
		const begun = performance.now();
		try {
			const [view] = await Promise.all([loadRun(this.view.run_id, this.signal), this.loadDetail()]);
			this.view = view;
			this.paint();
		} catch {
			// the stream tells when the server is there again
		}
		this.took = performance.now() - begun;
	}

	/** What the server has of the step that is shown. */
	async loadDetail() {
		const address = this.picked;
		if (!address) return;
		let detail = { messages: [], prompts: [], step: { output: null, facts: {} } };
		try {
			detail = await get(`${this.path}/steps?address=${enc(address)}&cut=${CUT}`, { signal: this.signal });
		} catch (error) {
			if (error.status !== 404) throw error; // it has not begun, or was skipped before it began
		}
		detail.cuts = new Cuts(detail.cut, async (at) => (await get(`${this.path}/value?address=${enc(address)}&at=${enc(at)}`, { signal: this.signal })).value);
		if (address === this.picked) this.detail = detail;
	}

	status() {
		const fold = this.fold;
		if (this.stopping && !fold.isOver && this.view.is_active) return "cancelling";
		if (!fold.status) return this.view.status;
		if (!fold.isOver && this.view.status === "interrupted") return "interrupted";
		return fold.status;
	}

	// --- what is shown

	paint() {
		const status = this.status();
		if (this.shownStatus !== status) {
			this.shownStatus = status;
			fill(this.statusBox, chip(status));
			document.title = `${statusOf(status).word}: ${this.view.recipe} · Minions`;
		}
		this.paintButtons(status);
		this.paintFacts(status);
		this.paintWaits(status);
		this.paintPlans();
		this.rollback.show(this.view, status);
		this.capture.show(this.view, status);
		this.paintResult();
		this.marks.show(this.view, null, !isOn(status) && this.view.steps.some((step) => step.status === "completed"));
		const all = this.fold.ordered(this.ids), isPlan = (id) => this.graph?.kinds.get(id) === "plan";
		const grouped = this.showsInner ? all : byPlanSteps(all, isPlan);
		this.inner.hidden = !this.showsInner && grouped.length === all.length;
		this.inner.textContent = this.showsInner ? "Show the plan's steps" : `Show all ${count(all.length)} inner steps`;
		this.steps = this.someSteps(grouped);
		const isOver = !isOn(status);
		this.graph?.show((id) => this.stateOf(this.fold.steps.get(id), isOver), this.picked && outermost(this.picked));
		this.paintFall(isOver);
		if (this.picked) this.paintDrawer(isOver);
	}

	/** The recipe's own steps; of those within steps as many as can be read, and failed ones first. */
	someSteps(all) {
		let room = MOST_INNER;
		const inner = all.filter(({ depth }) => depth > 0);
		const failed = inner.filter(({ step }) => step.status === "failed").slice(0, room);
		room -= failed.length;
		const shown = new Set([...failed, ...inner.filter((each) => !failed.includes(each)).slice(0, room)]);
		this.left.hidden = inner.length <= shown.size;
		this.left.textContent = `… and ${plural(inner.length - shown.size, "step")} within items. Open a step to see its items.`;
		return all.filter((each) => each.depth === 0 || shown.has(each));
	}

	paintDrawer(isOver) {
		const known = this.fold.find(this.picked);
		const step = known ?? { ...new RunFold().step(this.picked), status: this.detail?.step.status ?? "pending" };
		this.drawer.show(step, this.view, this.detail, this.graph?.kinds.get(outermost(this.picked)), isOver, known && this.fold.totalsOf(known));
	}

	stateOf(step, isOver) {
		if (!step) return null;
		const kept = step.cachedFrom ? "(cached)" : step.pinnedFrom ? "(pinned)" : "";
		const totals = this.fold.totalsOf(step);
		const items = totals && step.status === "running" ? `${totals.ended}/${totals.total ?? "?"}` : "";
		const usage = step.status === "running" ? totals?.usage : step.usage;
		const took = step.status !== "running" && step.status !== "skipped" && step.duration !== undefined ? duration(step.duration) : "";
		const tokens = usage?.total_tokens ? `${short(usage.total_tokens)} tok` : "";
		const isMixed = step.status === "completed" && totals?.failed > 0;
		const failed = isMixed ? `${count(totals.failed)} of ${count(totals.total ?? totals.ended)} failed` : "";
		const note = [failed, kept || items, kept ? "" : took, kept ? "" : tokens].filter(Boolean).join(" · ");
		const status = isMixed ? "partial" : isOver && step.status === "running" ? "interrupted" : step.status;
		return { status, note, totals };
	}

	paintButtons(status) {
		if (!changed(this, "buttons", status)) return;
		fill(this.buttons,
			(isOn(status) || status === "queued") && action("Stop", () => this.stop(), { needs: "run", class: "stop", disabled: status === "cancelling" }),
			CUT_OFF.includes(status) && action("Resume", () => this.again("resume"), { needs: "run", class: "primary" }),
			["failed", "partial"].includes(status) && action("Retry", () => this.again("retry"), { needs: "run", class: "primary", title: "Failed steps run again; what is done is kept" }),
			!isOn(status) && status !== "rejected" && action("Run again", () => this.runAgain(), { needs: "run", title: "The form of a new run with these inputs" }),
			h("a.button", { href: `#/compare?a=${enc(this.view.run_id)}` }, "Compare"),
			h("a.button", { href: `#/sessions/${enc(this.view.session_id)}`, title: "The conversation, and forks of it" }, "Session"));
	}

	async stop() {
		this.stopping = true;
		this.paint();
		try {
			await post(`${this.path}/cancel`);
		} catch (error) {
			this.stopping = false;
			this.refreshSoon();
			throw error;
		}
	}

	/** `resume` or `retry`; of a retry from which step. */
	async again(what, body) {
		this.stopping = false;
		await post(`${this.path}/${what}`, body);
		await this.goOn();
	}

	/** The form with the run's inputs: they are seen, and can be changed, before anything is paid. */
	runAgain() {
		go(`/new?recipe=${enc(this.view.recipe)}&like=${enc(this.view.run_id)}`);
	}

	/** A run that had ended may be active again: another caller decided or resumed it. */
	async lookAgain() {
		if (!this.fold.isOver || this.fold.status === "completed") return;
		const before = this.fold.status;
		await this.refresh();
		if (this.view.is_active || this.view.status !== before) await this.goOn();
	}

	/** The run was over and is active again: its stream had ended with it. Its own decision and news of it may both ask. */
	async goOn() {
		const before = this.fold, wasOver = before.isOver;
		await this.refresh();
		if (!wasOver || this.fold !== before) return;
		this.fold = new RunFold();
		this.steps = null; // they belong to the fold before
		this.follow();
	}

	paintFacts(status) {
		const view = this.view, soFar = isOn(status) ? " so far" : "";
		const usage = view.finished_at && view.usage.total_tokens !== undefined ? view.usage : this.fold.usageSoFar();
		const model = this.fold.model ?? view.model;
		if (!changed(this, "facts", [status, usage, model, view.finished_at, this.fold.starts])) return;
		this.clock = h("span.tabular");
		const fact = (name, ...content) => h("div", h("dt", name), h("dd", content));
		fill(this.facts,
			fact("Started", time(view.started_at)),
			fact("Duration", this.clock),
			fact(`Tokens${soFar}`, h("span", { title: `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out, ${count(usage.cached_tokens)} from the cache`, text: count(usage.total_tokens) })),
			fact(`Cost${soFar}`, cost(usage)),
			fact("Model", model ? h("code", model) : "none"),
			fact("Session", h("a", { href: `#/sessions/${enc(view.session_id)}` }, h("code", view.session_id))),
			this.fold.starts > 1 ? fact("Begun", plural(this.fold.starts, "time")) : null);
		this.tick();
	}

	tick() {
		const on = isOn(this.shownStatus), end = on ? null : this.fold.endedAt ?? this.view.finished_at;
		if (this.clock) this.clock.textContent = on || end ? duration(between(this.view.started_at, end)) : "–";
		if (on && this.steps) this.paintFall(false);
	}

	paintWaits(status) {
		const view = this.view, on = isOn(status), waitsForWorker = status === "queued" || status === "interrupted";
		const waiting = on ? [] : view.waiting, error = on ? null : this.fold.error ?? view.error;
		const isBad = error && !(error.code === "needs-decision" && waiting.length), isStopped = status === "cancelled";
		const named = this.fold.steps.get(error?.where)?.status === "failed" ? error.where : null;
		const failed = isBad && (named ?? [...this.fold.steps.values()].findLast((step) => step.status === "failed")?.id);
		const others = this.decidedByOthers(waiting);
		const parts = view.lacks.filter((each) => !each.endsWith(".")), refusals = view.lacks.filter((each) => each.endsWith("."));
		if (!changed(this, "waits", [waiting, others, failed, isBad && error, this.fold.limit, view.faults, view.lacks, view.paused, status])) return;
		this.cards = new Map(waiting.map((each) => [each.id, { waiting: each, card: this.card(each) }]));
		fill(this.waits,
			others.map(decidedByOther),
			[...this.cards.values()].map(({ card }) => card),
			waitsForWorker && view.paused && callout("stop", "No worker takes it", view.paused),
			waitsForWorker && view.lacks.length && callout("stop", "No worker can execute it", [parts.length && `None has ${parts.length > 1 ? "all of: " : ""}${parts.join("; ")}.`, ...refusals].filter(Boolean).join(" ")),
			this.fold.limit && callout("stop", null, this.fold.limit),
			isBad && callout(isStopped ? "stop" : "bad", isStopped ? "Stopped" : "It ended with an error", error.message, `${error.code}${error.where ? ` at ${error.where}` : ""}`, failed && h("p", h("a", { href: `#${this.addressOf(failed)}` }, "Open step ", h("code", failed)))),
			view.faults.map(faultView));
	}

	card(waiting) {
		const onSend = () => this.sent.add(waiting.id);
		const onDecided = (isOwn) => {
			if (!isOwn) this.sent.delete(waiting.id);
			return this.goOn();
		};
		return decisionCard(waiting, { isInline: true, onSend, onDecided });
	}

	/** What waited here and was decided elsewhere, with the note of it as soon as it is recorded. */
	decidedByOthers(waiting) {
		for (const [id, { waiting: each, card }] of this.cards) {
			if (!waiting.some((other) => other.id === id)) this.decided.set(id, { each, id, unsent: unsentText(card), taken: null });
		}
		for (const { id } of waiting) this.decided.delete(id);
		for (const known of this.decided.values()) {
			const { question, tool, arguments: given } = known.each;
			known.taken ??= this.view.notes.findLast(({ kind, state, facts }) => kind === "decision" && state !== "waiting" && facts.question === (question ?? undefined) && facts.tool === (tool ?? undefined) && facts.arguments === (given ?? undefined)) ?? null;
		}
		return [...this.decided.values()].filter(({ id, taken, unsent }) => !this.sent.has(id) && (taken || unsent));
	}

	/** Plans of earlier runs that were looked for; plans that took the place of those that failed, where nobody was asked. */
	paintPlans() {
		const plans = this.view.notes.filter((each) => each.kind === "plan");
		if (!changed(this, "plans", plans)) return;
		fill(this.plans, plans.map(({ step_id: step, state, facts }) => state === "looked_up" ? h("p.panel", "Step ", h("code", step), ": ", facts.text) : h("details.panel", { open: true },
			h("summary", "Step ", h("code", step), " was planned again"), planDiff(facts.diff))));
	}

	paintResult() {
		const { output, inputs, cuts } = this.view, scores = this.view.notes.filter((each) => each.kind === "score");
		if (!changed(this, "result", [output, inputs, cuts.parts, scores])) return;
		fill(this.result,
			output !== null && h("section.panel", h("h2", "Output"), code(output, "Output", cuts.at("/output"))),
			scores.length > 0 && h("section.panel", h("h2", "Scores"), h("ul.plain.lines", scores.map(score))),
			this.marks.el,
			h("details.panel", h("summary", "Inputs"), inputs && Object.keys(inputs).length ? code(inputs, "Inputs", cuts.at("/inputs")) : h("p.muted", "None.")));
	}

	paintFall(isOver) {
		const present = now(), at = (iso) => (iso ? Date.parse(iso) : present);
		const spans = this.steps.flatMap(({ step }) => step.spans.map(({ start, end }) => ({ start: at(start), end: at(end) })));
		const line = this.line = timeline(spans);
		this.time.show(line);
		fill(this.scale, spans.length ? this.time.labels().map((text) => h("span", text)) : h("span", "Nothing has begun."));
		const kept = document.activeElement?.dataset?.step;
		this.rows.show(this.steps, ({ step }) => step.id,
			({ step }) => JSON.stringify([this.fold.totalsOf(step), step.status, step.duration, step.spans, step.serverWait, this.picked === step.id, isOver, line.breaks.length]),
			(entry) => this.fallRow(entry, line, isOver));
		if (kept && document.activeElement === document.body) this.rowOf(kept)?.focus({ preventScroll: true });
		for (const { step } of this.steps) this.place(step, line, at, isOver);
	}

	fallRow({ step, depth, name: planned }, line, isOver) {
		const { status, totals } = this.stateOf(step, isOver), { kind, word } = statusOf(status);
		const mixed = status === "partial" ? kind : null;
		const track = h("span.track", { "aria-hidden": "true" },
			line.breaks.map(({ ms }) => h("span.break", { title: `${duration(ms)} in which nothing ran` })),
			step.spans.map((span) => h("span", { class: `bar ${mixed ?? statusOf(span.end || !isOver ? span.status : "interrupted").kind}` })));
		const took = step.duration !== undefined && status !== "skipped" && status !== "running" ? duration(step.duration) : "";
		const kept = step.cachedFrom ? ", cached" : step.pinnedFrom ? ", pinned" : "";
		const name = planned ?? (depth ? step.id.split("/").slice(1).join("/") : step.id), shownTotals = totals && totalsText(totals);
		const waits = !isOver && isAhead(step.serverWait) ? `waits for the server until ${timeWords(step.serverWait.until)}` : "";
		const shownTime = took || (waits ? "server" : word);
		// What is read aloud begins with what is seen, so that it can be said to choose the row.
		const spoken = [name, shownTotals, shownTime, shownTime === word ? "" : word, waits].filter(Boolean).join(" ") + kept;
		return h("div", { role: "listitem" }, h("button.fall-row", { data: { step: step.id }, "aria-label": spoken,
			"aria-pressed": String(this.picked === step.id), onclick: (event) => this.go(step.id, event.currentTarget) },
		h("span", { class: `name depth-${Math.min(depth, 3)}` }, h("span", { class: `mark ${kind}` }, shape(kind)), h("span.clip", { title: step.id }, name)),
		track, " ", totals && h("span.totals.muted.tabular", shownTotals), " ", h("span.took", { title: waits }, took || h("span.muted", shownTime))));
	}

	/** Where the picked step ran, as a part of the timeline; null: nowhere. */
	middleOfPicked() {
		const spans = (this.picked && this.fold.find(this.picked)?.spans) || [];
		if (!spans.length || !this.line) return null;
		const at = (iso) => this.line.at(iso ? Date.parse(iso) : now());
		return (at(spans[0].start) + at(spans.at(-1).end)) / 2;
	}

	rowOf(id) {
		return this.rows.known.get(id)?.el.firstChild;
	}

	/** Bars move while their row stays, so that a click on it is not lost. */
	place(step, line, at, isOver) {
		const row = this.rowOf(step.id), last = step.spans.at(-1);
		const put = (bar, from, to) => {
			const [left, right] = [from, to].map((share) => this.time.place(share));
			bar.hidden = right < 0 || left > 1;
			const seen = Math.max(0, left);
			bar.style.left = `min(${seen * 100}%, 100% - 3px)`;
			bar.style.width = `${Math.max(0, Math.min(1, right) - seen) * 100}%`;
		};
		row.querySelectorAll(".break").forEach((bar, place) => put(bar, line.breaks[place].from, line.breaks[place].to));
		row.querySelectorAll(".bar").forEach((bar, place) => put(bar, line.at(at(step.spans[place].start)), line.at(at(step.spans[place].end))));
		if (last && !last.end && !isOver) row.lastChild.textContent = duration(at(null) - at(last.start));
	}

	// --- the drawer

	go(step, from) {
		this.from = from;
		go(this.addressOf(step));
	}

	/** Another tab, or away from the step. */
	leave(tab) {
		if (tab) {
			go(`${this.addressOf(this.picked)}&tab=${tab}`, { replace: true });
			return;
		}
		const picked = this.picked;
		go(this.addressOf(null));
		(this.from?.isConnected ? this.from : this.rowOf(picked) ?? this.fall.querySelector("button"))?.focus();
	}

	pick(query) {
		const step = query.get("step");
		this.time.read(query);
		const isNew = step !== this.picked;
		this.picked = step;
		if (isNew) this.detail = null;
		if (isNew && step) this.loadDetail().then(() => this.paint(), () => {});
		this.drawer.open(step, query.get("tab"), isNew);
		this.paint();
	}
}

export const faultView = (fault) => callout("bad", fault.message, fault.help ?? fault.label, `${fault.file}:${fault.line}:${fault.column} ${fault.code}`);

/** What a scorer of the recipe's `watch` said of the output. */
function score({ state, facts }) {
	const value = facts.value ?? null;
	return h("li", tag(value === null || state === "imported" ? "gone" : facts.is_passed ? "good" : "bad", value === null ? "no score" : String(value)), " ", facts.scorer, facts.reason && `: ${facts.reason}`);
}
